"""Base class of the built-in engines. Subclasses choose the thread or process that generates."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from hooktrainer._util.places import place_of_user_code
from hooktrainer.models.device import to_device
from hooktrainer.ports import (
    Floats,
    GroupSource,
    Prompt,
    ReplayBuffer,
    SupportsWorkerReports,
    Timeline,
    Tokens,
    Trajectory,
)
from hooktrainer.rollout.generator_config import GeneratorConfig
from hooktrainer.rollout.options import LocalOptions
from hooktrainer.rollout.statistics import RolloutStats
from hooktrainer.rollout.worker_loop import WorkerLoop

if TYPE_CHECKING:
    from torch import nn

    from hooktrainer.ports import Weights
    from hooktrainer.rollout.generation import Generator
    from hooktrainer.weight_sync.double_buffer import DoubleBuffer


_LOG: Final = logging.getLogger("hooktrainer")
GRACE_S: Final = 1.5
"""Seconds that threads have to return after the engine was closed."""
CLOSE_S: Final = 2.0
"""Seconds that environments have to close after that."""
_MAX_GROUPS: Final = 8
"""Groups of a worker that a message lists."""


class Engine:
    """Own copy of the published weights, greedy answers for validation, and metrics."""

    def __init__(self, generator: Generator, weights: DoubleBuffer, stats: RolloutStats | None = None) -> None:
        self._generator = generator
        self._weights = weights
        self._stats = stats or RolloutStats()
        self._stopped = threading.Event()
        self._buffer: ReplayBuffer | None = None

    @property
    def version(self) -> int:
        """Version that the engine samples from, -1 before the first publish."""
        return self._weights.version

    @property
    def module(self) -> nn.Module:
        """The module with the published weights; see `hooktrainer.ports.HasModule`."""
        return self._generator.weights.in_use

    def spec(self) -> Weights:
        """Return the tensors that can be staged."""
        return self._weights.spec()

    def stage(self, weights: Weights, version: int) -> Mapping[str, int]:
        """Copy a bucket into the spare set; wait only for answers that started two versions ago."""
        self._stats.begin_sync()
        return self._weights.stage(weights, version)

    def pause(self) -> None:
        """Stop new requests until `resume`; requests in flight continue on the weights that they started with."""
        self._weights.pause()

    def resume(self) -> None:
        """Let new requests start."""
        self._weights.resume()

    def logprobs(self, tokens: Tokens) -> Floats:
        """Return the log-probability of each token given the tokens before it, (L,) -> (L - 1,)."""
        return self._generator.logprobs(tokens)

    def start(self, buffer: ReplayBuffer) -> None:
        """Start to generate the groups of this buffer."""
        self._buffer = buffer
        self._generator.open()
        self._stopped.clear()
        if isinstance(buffer, SupportsWorkerReports):
            buffer.set_worker_report(self.describe_workers)

    def describe_workers(self, group: int | None = None) -> str:  # noqa: ARG002 (this engine has no workers)
        """Describe the worker that generates a group, or with None all workers that are busy."""
        return ""

    def answer(self, prompts: Sequence[Prompt]) -> Sequence[Trajectory]:
        """Return one greedy, scored answer to each prompt, from the published weights."""
        return self._generator.greedy(prompts)

    def take_metrics(self) -> Mapping[str, object]:
        """Return the metrics since the last call."""
        return self._stats.take()

    def use_timeline(self, timeline: Timeline) -> None:
        """Add the spans of workers and weight syncs to this timeline."""
        self._stats.timeline = timeline

    def _end_rewards(self, seconds: float) -> None:
        """Cancel all rewards; abandon threads whose reward does not return."""
        self._generator.close()
        self._generator.finish(CLOSE_S)
        warn_of_abandoned(self._generator.join(seconds), place_of_user_code)

    def _worker_loop(self, source: GroupSource, name: str, on_failure: Callable[[BaseException], None]) -> WorkerLoop:
        return WorkerLoop(
            self._generator,
            source,
            self._stats,
            self._stopped,
            name=name,
            check_fingerprints=self._weights.detector.check,
            on_failure=on_failure,
        )


class ReversibleEngine(Engine):
    """An engine that switches between two sets of weights, which this process or its workers hold."""

    def flip(self) -> None:
        """Use the staged weights for new requests, and with `on_sync: continue` also for those in flight."""
        self._weights.flip()
        self._stats.end_sync()

    def unflip(self) -> None:
        """Undo the flip since the last `stage`, and discard staged weights."""
        self._weights.unflip()
        self._stats.end_sync()


def warn_of_abandoned(threads: Sequence[threading.Thread], place_of: Callable[[threading.Thread], str]) -> None:
    """Warn of threads that did not return at the end of a run, once for each place that some of them are in."""
    by_place: dict[str, list[str]] = {}
    for thread in threads:
        by_place.setdefault(place_of(thread), []).append(thread.name)
    for place, names in by_place.items():
        first, more = min(names, key=lambda name: (len(name), name)), len(names) - 1
        who = f"{first} and {more} more thread{'s' if more > 1 else ''}" if more else first
        are, they_are = ("are", "they are") if more else ("is", "it is")
        _LOG.warning("%s did not return within %g s and %s abandoned; %s in %s", who, GRACE_S, are, they_are, place)


def listed_groups(numbers: Sequence[int]) -> str:
    """Return the numbers of groups as text, the first ones only if there are many."""
    shown = ", ".join(map(str, numbers[:_MAX_GROUPS]))
    more = f" and {len(numbers) - _MAX_GROUPS} more" if len(numbers) > _MAX_GROUPS else ""
    return f"group{'s' if len(numbers) > 1 else ''} {shown}{more}" if numbers else "no groups"


def make_parts(options: LocalOptions, config: GeneratorConfig) -> tuple[Generator, DoubleBuffer]:
    """Return a generator and its weights, for an engine that generates in this process."""
    from hooktrainer.models.policy import full_state
    from hooktrainer.rollout.generation import Generator
    from hooktrainer.weight_sync.double_buffer import DoubleBuffer, ModulePair

    def policy() -> nn.Module:
        module = config.policy()
        return module if options.device == "auto" else to_device(module, options.device, "rollout.device")

    modules = ModulePair(policy, options.sync_timeout_s)
    generator = Generator(config, options, modules)
    return generator, DoubleBuffer([full_state(module) for module in modules.modules], modules)
