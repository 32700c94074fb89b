"""What engines inside the trainer's process share; they differ in whose thread does the work."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from hooktrainer.groups import Prompt, Trajectory
from hooktrainer.metrics import Max
from hooktrainer.ports import ReplayBuffer
from hooktrainer.rollout.meter import Meter

if TYPE_CHECKING:
    from hooktrainer.ports import Weights
    from hooktrainer.rollout.generator import Generator
    from hooktrainer.rollout.weights import DoubleBuffer


class Engine:
    """Base of the built-in engines: their own copy of the published weights, validation and metrics."""

    def __init__(self, generator: Generator, weights: DoubleBuffer, meter: Meter | None = None) -> None:
        self._generator = generator
        self._weights = weights
        self._meter = meter or Meter()
        self._stopped = threading.Event()
        self._buffer: ReplayBuffer | None = None

    @property
    def version(self) -> int:
        """Version that it samples from; -1 before the first publish."""
        return self._weights.version

    def stage(self, weights: Weights, version: int) -> None:
        """Copy weights beside those in use; waits only for answers that are two versions behind."""
        self._meter.begin_sync()
        self._weights.stage(weights, version)
        if self._weights.cast_error:
            self._meter.record({"weight_sync/cast_error": Max(self._weights.cast_error)})

    def flip(self) -> None:
        """Use the staged weights from the next token on, or the next answer, as `on_sync` says."""
        self._weights.flip()
        self._meter.end_sync()

    def unflip(self) -> None:
        """Undo the flip since the last `stage`, and forget what is staged."""
        self._weights.unflip()
        self._meter.end_sync()

    def start(self, buffer: ReplayBuffer) -> None:
        """Serve this buffer from now on."""
        self._buffer = buffer
        self._stopped.clear()

    def answer(self, prompts: Sequence[Prompt]) -> Sequence[Trajectory]:
        """One greedy answer to each prompt, scored, on the published weights."""
        return self._generator.greedy(prompts)

    def take_metrics(self) -> Mapping[str, object]:
        """Metrics since the last call."""
        return self._meter.take()
