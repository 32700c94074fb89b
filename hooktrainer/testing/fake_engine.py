"""Fakes of what holds weights and what brings them; they need no torch."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hooktrainer.ports import Floats, Group, Prompt, ReplayBuffer, Tokens, Trajectory, WeightHolder
from hooktrainer.weight_sync.checksums import checksum
from hooktrainer.weight_sync.protocol import SyncAttempt, VerifiedTransport


def scores_of(weights: Mapping[str, Any], tokens: Tokens) -> Floats:
    """Log-probabilities that depend on all weights, numbers or tensors."""
    total = sum(float(value.sum() if hasattr(value, "sum") else value) for value in weights.values())
    return np.full(len(tokens) - 1, -abs(total), np.float32)


class FakeHolder:
    """Holds weights, the ones in use and the ones before; they may be anything that can be copied."""

    def __init__(self) -> None:
        self._held: list[tuple[int, Any]] = [(-1, None)]
        self._staged: tuple[int, Any] | None = None
        self.calls: list[str] = []
        """What was asked of it: stage, pause, flip, unflip, resume, logprobs, start, answer, close."""
        self.paused = False
        """Between `pause` and `resume`."""

    @property
    def version(self) -> int:
        """Version that it samples from."""
        return self._held[-1][0]

    @property
    def held(self) -> Any:
        """The weights in use."""
        return self._held[-1][1]

    def spec(self) -> None:
        """It takes everything."""

    def stage(self, weights: Any, version: int) -> Mapping[str, int]:
        """Copy weights beside those in use, in one bucket or in several."""
        self.calls.append("stage")
        copied = copy.deepcopy(dict(weights))
        before = self._staged[1] if self._staged and self._staged[0] == version else {}
        self._staged = (version, {**before, **copied})
        return {name: checksum(value) for name, value in copied.items()}

    def pause(self) -> None:
        """Sample nothing until `resume`."""
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
        """Go back to the weights before."""
        self.calls.append("unflip")
        self._staged = None
        if len(self._held) > 1:
            self._held.pop()

    def resume(self) -> None:
        """Sample again."""
        self.calls.append("resume")
        self.paused = False

    def logprobs(self, tokens: Tokens) -> Floats:
        """A number that depends on all weights in use; the fake learner gives the same one."""
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
        """Begin to serve."""
        self.calls.append("start")
        self._buffer = buffer

    def pump(self) -> None:
        """Finish everything that is pending."""
        while self._buffer is not None and (groups := self._buffer.claim(64, block=False)):
            for group in groups:
                if error := self._fails(group):
                    self._buffer.fail(group, error)
                else:
                    self._buffer.finish(group, [self._trajectory()] * self._answers)

    def answer(self, prompts: Sequence[Prompt]) -> Sequence[Trajectory]:
        """One answer to each prompt."""
        self.calls.append("answer")
        return [self._trajectory()] * len(prompts)

    def take_metrics(self) -> Mapping[str, object]:
        """Nothing."""
        return {}

    def close(self) -> None:
        """Stop."""
        self.calls.append("close")

    def _trajectory(self) -> Trajectory:
        return Trajectory(
            tokens=np.zeros(1, np.int64),
            logprobs=np.zeros(1, np.float32),
            score=self._score,
            versions=np.full(1, self.version),
        )


class FakeTransport(VerifiedTransport):
    """The real protocol over engines that take everything in one piece, as fakes do.

    It raises the errors it was given, one a publish (None for success), before anything else.
    """

    def __init__(
        self, errors: Sequence[Exception | None] = (), before_publish: Callable[[int], None] = lambda _: None
    ) -> None:
        self._errors = list(errors)
        self._before_publish = before_publish
        self.published: list[int] = []
        """Versions that arrived."""

    def publish(
        self, weights: Any, version: int, engines: Sequence[WeightHolder], **options: Any
    ) -> Mapping[str, object]:
        """Bring weights to engines."""
        self._before_publish(version)
        if self._errors and (error := self._errors.pop(0)):
            raise error
        metrics = super().publish(weights, version, engines, **options)
        self.published.append(version)
        return metrics

    def _stage(self, attempt: SyncAttempt, weights: Any, *_: object) -> Mapping[str, object]:
        for place, engine in enumerate(attempt.engines):
            engine.stage(weights, attempt.version)
            attempt.staged.append(place)
        return {}
