"""What engines inside the trainer's process share; they differ in whose thread does the work."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from hooktrainer.groups import Group, Prompt, Trajectory
from hooktrainer.metrics import Max, Metric, Rate, Sum, merge
from hooktrainer.ports import ReplayBuffer

if TYPE_CHECKING:
    from hooktrainer.ports import Weights
    from hooktrainer.rollout.generator import Generator


class LocalEngine:
    """Base of engines that generate in this process, from their own copy of the published weights."""

    def __init__(self, generator: Generator, max_batch_groups: int | None) -> None:
        self._generator = generator
        self._limit = max_batch_groups or 2**31
        self._buffer: ReplayBuffer | None = None
        self._metrics: dict[str, Metric] = {}
        self._metrics_lock = threading.Lock()

    @property
    def version(self) -> int:
        """Version that it samples from; -1 before the first publish."""
        return self._generator.weights.version

    def stage(self, weights: Weights, version: int) -> None:
        """Copy weights beside those in use; waits only for readers that are two versions behind."""
        self._generator.weights.stage(weights, version)
        if self._generator.weights.cast_error:
            self._record({"weight_sync/cast_error": Max(self._generator.weights.cast_error)})

    def flip(self) -> None:
        """Use the staged weights from the next batch on; a batch in flight ends on those it began with."""
        self._generator.weights.flip()

    def unflip(self) -> None:
        """Undo the flip since the last `stage`, and forget what is staged."""
        self._generator.weights.unflip()

    def start(self, buffer: ReplayBuffer) -> None:
        """Serve this buffer from now on."""
        self._buffer = buffer

    def answer(self, prompts: Sequence[Prompt]) -> Sequence[Trajectory]:
        """One greedy answer to each prompt, scored, on the published weights."""
        return self._generator.greedy(prompts)

    def take_metrics(self) -> Mapping[str, object]:
        """Metrics since the last call."""
        with self._metrics_lock:
            taken, self._metrics = self._metrics, {}
        return taken

    def _serve(self, buffer: ReplayBuffer, groups: Sequence[Group]) -> None:
        """Generate claimed groups and hand them in; whatever happens, each of them is finished or failed."""
        waiting = list(groups)
        try:
            began = time.perf_counter()
            answers = self._generator.groups(groups)
            self._record(_measured(answers, time.perf_counter() - began))
            for group, trajectories in zip(groups, answers, strict=True):
                buffer.finish(group, trajectories)
                waiting.remove(group)
        except BaseException as error:
            for group in waiting:
                buffer.fail(group, error)
            if not isinstance(error, Exception):
                raise

    def _record(self, metrics: Mapping[str, Metric]) -> None:
        with self._metrics_lock:
            for key, metric in metrics.items():
                known = self._metrics.get(key)
                self._metrics[key] = metric if known is None else merge(known, metric)


def _measured(answers: Sequence[Sequence[Trajectory]], seconds: float) -> Mapping[str, Metric]:
    tokens = sum(len(trajectory.tokens) for group in answers for trajectory in group)
    return {
        "timing_s/generate": Sum(seconds),
        "rollout/num_tokens": Sum(tokens),
        "rollout/num_trajectories": Sum(sum(len(group) for group in answers)),
        "rollout/tokens_per_worker_second": Rate(tokens, seconds),
    }
