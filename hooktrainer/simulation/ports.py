"""Ports of a simulated run: the real buffer, and an engine and a learner that only consume time."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from hooktrainer.errors import StarvedError
from hooktrainer.ports import (
    Batch,
    Example,
    Floats,
    Group,
    Prompt,
    Replacement,
    ReplayBuffer,
    Tokens,
    Trajectory,
)
from hooktrainer.replay.buffer import GroupBuffer
from hooktrainer.replay.options import ReplayOptions
from hooktrainer.simulation.virtual_clock import VirtualClock

TOKENS_PER_SECOND: Final = 1000
"""Converts a generation time into a number of tokens, so that lengths in the ledger are times in milliseconds."""
_TICK_S: Final = 1e-6
"""Added to every wait for a timeout, because a sum of two floats may be just before the deadline."""
_MAX_DISPATCHES_PER_SAMPLE: Final = 1000
"""Number of mini-batches to dispatch for one sample before the run counts as starved."""
_LONGEST: Final = 2**40
_TOKENS: Final = np.broadcast_to(np.int64(0), (_LONGEST,))  # views that take no memory
_LOGPROBS: Final = np.broadcast_to(np.float32(0), (_LONGEST,))


class VirtualBuffer(GroupBuffer):
    """The real buffer in one thread: waiting advances the virtual clock. The ledger is checked in every step.

    A real run that starves without a timeout would never end; here it ends with `StarvedError`.
    """

    def __init__(self, limits: ReplayOptions | None, clock: VirtualClock) -> None:
        super().__init__(limits, clock=clock, strict=True)
        self._virtual = clock
        self._num_dispatched = 0  # since the last batch
        self._wanted = (0, 0)  # groups, step
        self.on_dispatch: Callable[[], None] = lambda: None
        """Called when groups become pending, where a real buffer would wake waiting threads."""

    def dispatch(self, prompts: Sequence[Prompt], groups_per_step: int | None = None) -> int:
        """Dispatch prompts as the real buffer does. Raises `StarvedError` if the strategy accepts no group."""
        num_discarded = super().dispatch(prompts, groups_per_step)
        if not prompts:
            return 0
        self._num_dispatched += len(prompts)
        size, step = self._wanted
        if size and self._num_dispatched > _MAX_DISPATCHES_PER_SAMPLE * size:
            raise StarvedError(
                f"starved: no mini-batch of {size} could be sampled in step {step}, though {self._num_dispatched} "
                f"groups were dispatched for it; the strategy {self._policy!r} accepts none"
            )
        self.on_dispatch()
        return num_discarded

    def sample(self, size: int, step: int, refill: Callable[[Sequence[Replacement]], None]) -> Batch:
        """Sample a mini-batch as the real buffer does."""
        self._wanted, self._num_dispatched = (size, step), 0
        batch = super().sample(size, step, refill)
        self._wanted = (0, 0)
        return batch

    def _wait(self, seconds: float) -> bool:
        if self._virtual.run_next(within=seconds):
            self._virtual.advance(0)  # run all actions that are due at the same time
        else:
            self._virtual.advance(seconds + _TICK_S)
        return True  # the reminder of a long wait is not logged here


class SimulatedHolder:
    """Holds version numbers instead of weights: the current one and the previous one."""

    def __init__(self) -> None:
        self._held = [-1]
        self._staged: int | None = None

    @property
    def version(self) -> int:
        """Return the version that the engine samples from; -1 before the first publish."""
        return self._held[-1]

    def spec(self) -> None:
        """Accept any weights."""

    def stage(self, weights: Any, version: int) -> Mapping[str, int]:  # noqa: ARG002 (there are none)
        """Remember the version."""
        self._staged = version
        return {}

    def pause(self) -> None:
        """Do nothing, because a flip takes no time."""

    def flip(self) -> None:
        """Use the staged version."""
        assert self._staged is not None, "nothing is staged"
        self._held = [self._held[-1], self._staged]
        self._staged = None

    def unflip(self) -> None:
        """Return to the previous version."""
        self._staged = None
        self._held = self._held[:1]

    def resume(self) -> None:
        """Do nothing, because the engine was not paused."""

    def logprobs(self, tokens: Tokens) -> Floats:
        """Raise `NotImplementedError`: there is no model."""
        raise NotImplementedError


class SimulatedEngine(SimulatedHolder):
    """Generates up to `groups_at_once` groups; the slot of a finished group is refilled at once.

    Unless `overlaps` is set, the engine works only while the loop waits for it.
    """

    def __init__(
        self, clock: VirtualClock, seconds: Callable[[Group], float], *, groups_at_once: int, overlaps: bool
    ) -> None:
        super().__init__()
        self._clock = clock
        self._seconds = seconds
        self._groups_at_once = groups_at_once
        self._overlaps = overlaps
        self._buffer: ReplayBuffer | None = None
        self._running: dict[int, float] = {}  # since when, by dispatch number
        self._busy_s = 0.0
        self.claimed: list[float] = []
        """Seconds that each claimed group takes."""
        self.tokens = 0
        """Number of generated tokens, including those of dropped groups."""

    @property
    def busy_s(self) -> float:
        """Return the seconds of work until now, summed over the slots."""
        return self._busy_s + sum(self._clock.now() - since for since in self._running.values())

    def start(self, buffer: ReplayBuffer) -> None:
        """Serve this buffer."""
        self._buffer = buffer

    def pump(self) -> None:
        """Claim groups and, unless the engine overlaps, generate all of them."""
        self.serve()
        while not self._overlaps and self._running:
            self._clock.run_next()

    def serve(self) -> None:
        """Claim one group for every free slot."""
        free = self._groups_at_once - len(self._running)
        if self._buffer is None or not free:
            return
        for group in self._buffer.claim(free, block=False):
            seconds = self._seconds(group)
            self.claimed.append(seconds)
            self._running[group.number] = self._clock.now()
            self._clock.schedule(seconds, partial(self._end, group, self.version, seconds))

    def _end(self, group: Group, version: int, seconds: float) -> None:
        """Finish a group, and claim the next one."""
        self._busy_s += self._clock.now() - self._running.pop(group.number)
        length = min(max(1, round(seconds * TOKENS_PER_SECOND)), _LONGEST)
        self.tokens += length
        if self._buffer is not None:
            self._buffer.finish(group, [_answer(length, version)])
            self.serve()

    def answer(self, prompts: Sequence[Prompt]) -> Sequence[Trajectory]:
        """Raise `NotImplementedError`: there is no model."""
        raise NotImplementedError

    def take_metrics(self) -> Mapping[str, object]:
        """Return no metrics."""
        return {}

    def close(self) -> None:
        """Stop serving the buffer."""
        self._buffer = None


def _answer(length: int, version: int) -> Trajectory:
    return Trajectory(
        tokens=_TOKENS[:length],
        logprobs=_LOGPROBS[:length],
        score=1.0,
        versions=np.broadcast_to(np.int64(version), (length,)),
    )


class SimulatedLearner:
    """Consumes the time of an update."""

    def __init__(self, clock: VirtualClock, seconds: Callable[[int], float]) -> None:
        self._clock = clock
        self._seconds = seconds
        self.busy_s = 0.0
        """Seconds of work."""
        self.batches: list[tuple[int, ...]] = []
        """Dispatch numbers of every update."""

    def start_step(self, step: int) -> None:
        """Do nothing: there is no state."""

    def update(self, groups: Sequence[Group]) -> Mapping[str, object]:
        """Let the time of one mini-batch pass."""
        seconds = self._seconds(len(self.batches))
        self.batches.append(tuple(group.number for group in groups))
        self.busy_s += seconds
        self._clock.advance(seconds)
        return {}

    def weights(self) -> Any:
        """Return no weights."""
        return {}

    def state_dict(self) -> Mapping[str, object]:
        """Return nothing: a simulation is not saved."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Do nothing: a simulation is not saved."""


class SimulatedTransport:
    """Consumes the time of a weight sync while the engine continues; the first publish takes no time."""

    def __init__(self, clock: VirtualClock, seconds: Callable[[int], float]) -> None:
        self._clock = clock
        self._seconds = seconds
        self.busy_s = 0.0
        """Seconds of work."""

    def publish(self, weights: Any, version: int, engines: Sequence[Any], **_options: Any) -> Mapping[str, object]:
        """Let the time pass, and publish the version to every engine."""
        seconds = self._seconds(version) if version else 0.0
        self.busy_s += seconds
        self._clock.advance(seconds)
        for engine in engines:
            engine.stage(weights, version)
            engine.flip()
        return {}


class NumberedPrompts:
    """An endless source of distinct prompts."""

    exhausted = False

    def __init__(self) -> None:
        self._numbers = itertools.count()

    def take(self, count: int) -> Sequence[Prompt]:
        """Return the next prompts."""
        return [Prompt(Example(str(number)), np.array([number])) for number in itertools.islice(self._numbers, count)]

    def heldout(self, count: int) -> Sequence[Prompt]:
        """Return no prompts."""
        return [][:count]

    def take_metrics(self) -> Mapping[str, object]:
        """Return no metrics."""
        return {}

    def state_dict(self) -> Mapping[str, object]:
        """Return nothing: a simulation is not saved."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Do nothing: a simulation is not saved."""
