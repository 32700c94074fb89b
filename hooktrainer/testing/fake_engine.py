"""Fakes of an engine and of a weight transport; they need no torch."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hooktrainer.ports import Floats, Group, Prompt, ReplayBuffer, Tokens, Trajectory, WeightHolder
from hooktrainer.weight_sync.checksums import checksum
from hooktrainer.weight_sync.protocol import SyncAttempt, VerifiedTransport


def scores_of(weights: Mapping[str, Any], tokens: Tokens) -> Floats:
    """Return log-probabilities that depend on all weights, which may be numbers or tensors."""
    total = sum(float(value.sum() if hasattr(value, "sum") else value) for value in weights.values())
    return np.full(len(tokens) - 1, -abs(total), np.float32)


class FakeHolder:
    """Holds the current and the previous weights, which may be any object that can be copied."""

    def __init__(self) -> None:
        self._held: list[tuple[int, Any]] = [(-1, None)]
        self._staged: tuple[int, Any] | None = None
        self.calls: list[str] = []
        """Names of the methods that were called: stage, pause, flip, unflip, resume, logprobs, start, answer, close."""
        self.paused = False
        """True between `pause` and `resume`."""

    @property
    def version(self) -> int:
        """Return the version of the current weights."""
        return self._held[-1][0]

    @property
    def held(self) -> Any:
        """Return the current weights."""
        return self._held[-1][1]

    def spec(self) -> None:
        """Accept any weights."""

    def stage(self, weights: Any, version: int) -> Mapping[str, int]:
        """Copy weights without using them, in one bucket or in several; return their checksums."""
        self.calls.append("stage")
        copied = copy.deepcopy(dict(weights))
        before = self._staged[1] if self._staged and self._staged[0] == version else {}
        self._staged = (version, {**before, **copied})
        return {name: checksum(value) for name, value in copied.items()}

    def pause(self) -> None:
        """Start no request until `resume`."""
        self.calls.append("pause")
        self.paused = True

    def flip(self) -> None:
        """Use the staged weights."""
        self.calls.append("flip")
        if self._staged is None:
            raise ValueError("nothing is staged")
        self._held = [self._held[-1], self._staged]
        self._staged = None

    def unflip(self) -> None:
        """Return to the previous weights."""
        self.calls.append("unflip")
        self._staged = None
        if len(self._held) > 1:
            self._held.pop()

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
        """Finish all pending groups."""
        while self._buffer is not None and (groups := self._buffer.claim(64, block=False)):
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
        """Record the call."""
        self.calls.append("close")

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
        for place, engine in enumerate(attempt.engines):
            engine.stage(weights, attempt.version)
            attempt.staged.append(place)
        return {}
