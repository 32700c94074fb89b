"""What engines inside the trainer's process share; they differ in whose thread does the work."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from hooktrainer.ports import Floats, Prompt, ReplayBuffer, Tokens, Trajectory
from hooktrainer.rollout.stats import RolloutStats
from hooktrainer.rollout.worker_loop import Source, WorkerLoop

if TYPE_CHECKING:
    from hooktrainer.ports import Weights
    from hooktrainer.rollout.generation import Generator
    from hooktrainer.weight_sync.double_buffer import DoubleBuffer


class Engine:
    """Base of the built-in engines: their own copy of the published weights, validation and metrics."""

    def __init__(self, generator: Generator, weights: DoubleBuffer, stats: RolloutStats | None = None) -> None:
        self._generator = generator
        self._weights = weights
        self._stats = stats or RolloutStats()
        self._stopped = threading.Event()
        self._buffer: ReplayBuffer | None = None

    @property
    def version(self) -> int:
        """Version that it samples from; -1 before the first publish."""
        return self._weights.version

    def spec(self) -> Weights:
        """Shapes and dtypes of what it takes."""
        return self._weights.spec()

    def stage(self, weights: Weights, version: int) -> Mapping[str, int]:
        """Copy a bucket beside the weights in use; waits only for answers that are two versions behind."""
        self._stats.begin_sync()
        return self._weights.stage(weights, version)

    def pause(self) -> None:
        """Begin no answer until `resume`; those in work go on with what they hold."""
        self._weights.pause()

    def flip(self) -> None:
        """Use the staged weights from the next token on, or the next answer, as `on_sync` says."""
        self._weights.flip()
        self._stats.end_sync()

    def unflip(self) -> None:
        """Undo the flip since the last `stage`, and forget what is staged."""
        self._weights.unflip()
        self._stats.end_sync()

    def resume(self) -> None:
        """Begin answers again."""
        self._weights.resume()

    def logprobs(self, tokens: Tokens) -> Floats:
        """Log-probability of each token given those before it, (L,) -> (L - 1,), by the weights in use."""
        return self._generator.logprobs(tokens)

    def start(self, buffer: ReplayBuffer) -> None:
        """Serve this buffer from now on."""
        self._buffer = buffer
        self._stopped.clear()

    def answer(self, prompts: Sequence[Prompt]) -> Sequence[Trajectory]:
        """One greedy answer to each prompt, scored, on the published weights."""
        return self._generator.greedy(prompts)

    def take_metrics(self) -> Mapping[str, object]:
        """Metrics since the last call."""
        return self._stats.take()

    def _server(self, source: Source) -> WorkerLoop:
        return WorkerLoop(self._generator, source, self._stats, self._stopped, self._weights.detector.check)
