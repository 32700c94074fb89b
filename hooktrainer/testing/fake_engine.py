"""Fakes of an engine and of a weight transport; they need no torch."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hooktrainer.errors import SyncError
from hooktrainer.ports import Floats, Group, Prompt, ReplayBuffer, Tokens, Trajectory, WeightHolder
from hooktrainer.weight_sync.checksums import checksum
from hooktrainer.weight_sync.protocol import SyncAttempt, VerifiedTransport, engine_name


def scores_of(weights: Mapping[str, Any], tokens: Tokens) -> Floats:
    """Return log-probabilities that depend on all weights, which may be numbers or tensors."""
    total = sum(float(value.sum() if hasattr(value, "sum") else value) for value in weights.values())
    return np.full(len(tokens) - 1, -abs(total), np.float32)


class FakeHolder:
    """Holds the current and the staged weights, which may be any values that can be copied."""

    def __init__(self) -> None:
        self._in_use: tuple[int, Any] = (-1, {})
        self._staged: tuple[int, Any] | None = None
        self._before: tuple[int, Any] | None = None
        """The version and weights before the last flip, while the flip can be undone."""
        self.calls: list[str] = []
        """Names of the methods that were called: stage, pause, flip, unflip, resume, logprobs, start, answer, close."""
        self.paused = False
        """True between `pause` and `resume`."""

    @property
    def version(self) -> int:
        """Return the version of the current weights."""
        return self._in_use[0]

    @property
    def held(self) -> Any:
        """Return the current weights."""
        return self._in_use[1]

    def spec(self) -> None:
        """Accept any weights."""

    def stage(self, weights: Any, version: int) -> Mapping[str, int]:
        """Copy weights without using them, in one bucket or in several; return their checksums."""
        self.calls.append("stage")
        copied = copy.deepcopy(dict(weights))
        if self._staged is None or self._staged[0] != version:
            self._staged, self._before = (version, {}), None
        self._staged[1].update(copied)
        return {name: checksum(value) for name, value in copied.items()}

    def pause(self) -> None:
        """Start no request until `resume`."""
        self.calls.append("pause")
        self.paused = True

    def flip(self) -> None:
        """Use the staged weights."""
        self.calls.append("flip")
        if self._staged is None:
            raise SyncError("flip without staged weights")
        self._in_use, self._before, self._staged = self._staged, self._in_use, None

    def unflip(self) -> None:
        """Undo the flip since the last `stage`, if there was one, and discard staged weights."""
        self.calls.append("unflip")
        self._in_use, self._before, self._staged = self._before or self._in_use, None, None

    def resume(self) -> None:
        """Start requests again."""
        self.calls.append("resume")
        self.paused = False

    def logprobs(self, tokens: Tokens) -> Floats:
        """Return log-probabilities that depend on all current weights; a fake learner returns the same ones."""
        self.calls.append("logprobs")
        return scores_of(self.held, tokens)


class FakeEngine(FakeHolder):
    """Answers every prompt at once with one token and a fixed score."""

    def __init__(
        self, answers: int = 1, score: float = 1.0, fails: Callable[[Group], Exception | None] | None = None
    ) -> None:
        super().__init__()
        self._answers = answers
        self._score = score
        self._fails = fails or (lambda _: None)
        self._buffer: ReplayBuffer | None = None

    def start(self, buffer: ReplayBuffer) -> None:
        """Serve this buffer."""
        self.calls.append("start")
        self._buffer = buffer

    def pump(self) -> None:
        """Finish all pending groups, unless the engine is paused."""
        while self._buffer is not None and not self.paused and (groups := self._buffer.claim(64, block=False)):
            for group in groups:
                if error := self._fails(group):
                    self._buffer.fail(group, error)
                else:
                    self._buffer.finish(group, [self._trajectory()] * self._answers)

    def answer(self, prompts: Sequence[Prompt]) -> Sequence[Trajectory]:
        """Return one answer for each prompt."""
        self.calls.append("answer")
        return [self._trajectory()] * len(prompts)

    def take_metrics(self) -> Mapping[str, object]:
        """Return no metrics."""
        return {}

    def close(self) -> None:
        """Serve the buffer no longer."""
        self.calls.append("close")
        self._buffer = None

    def _trajectory(self) -> Trajectory:
        return Trajectory(
            tokens=np.zeros(1, np.int64),
            logprobs=np.zeros(1, np.float32),
            score=self._score,
            versions=np.full(1, self.version),
        )


class FakeTransport(VerifiedTransport):
    """The real sync protocol, with all weights in one bucket.

    `errors` are raised one per publish, before anything else; None is a success.
    """

    def __init__(
        self, errors: Sequence[Exception | None] = (), before_publish: Callable[[int], None] = lambda _: None
    ) -> None:
        self._errors = list(errors)
        self._before_publish = before_publish
        self.published: list[int] = []
        """Versions that were published."""

    def publish(
        self, weights: Any, version: int, engines: Sequence[WeightHolder], **options: Any
    ) -> Mapping[str, object]:
        """Publish weights to engines, or raise the next error."""
        self._before_publish(version)
        if self._errors and (error := self._errors.pop(0)):
            raise error
        return super().publish(weights, version, engines, **options)

    def _published(self, version: int) -> None:
        self.published.append(version)

    def _stage(self, attempt: SyncAttempt, weights: Any, *_: object) -> Mapping[str, object]:
        sent = {name: checksum(value) for name, value in weights.items()}
        for place, engine in enumerate(attempt.engines):
            held = engine.stage(weights, attempt.version)
            attempt.staged.append(place)
            if held != sent:
                raise SyncError(f"{engine_name(place, engine)} does not hold the weights that were sent")
        return {}
