"""Small fakes, one for every port; they need no torch and finish everything at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from hooktrainer.groups import Group, Prompt, Trajectory
from hooktrainer.limits import Limits
from hooktrainer.ports import Clock, ReplayBuffer, RolloutEngine, StalenessPolicy
from hooktrainer.record import Row
from hooktrainer.replay import GroupBuffer


class ManualClock:
    """A clock that stands still until it is told."""

    def __init__(self, start: float = 0.0) -> None:
        self._now = start

    def now(self) -> float:
        """Seconds since the start."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        if seconds < 0:
            raise ValueError(f"time does not go back by {-seconds} s")
        self._now += seconds


class FakeLearner:
    """Reports the metrics it was given, one update after another; its weights are the number of updates."""

    def __init__(self, metrics: Sequence[Mapping[str, object]] | Callable[[int], Mapping[str, object]] = ()) -> None:
        self._metrics = metrics
        self.batches: list[tuple[Group, ...]] = []
        """The groups of every update."""

    @property
    def updates(self) -> int:
        """Updates made."""
        return len(self.batches)

    def update(self, groups: Sequence[Group]) -> Mapping[str, object]:
        """Remember the batch and report the next metrics; nothing once they are used up."""
        self.batches.append(tuple(groups))
        if callable(self._metrics):
            return self._metrics(self.updates)
        return self._metrics[self.updates - 1] if self.updates <= len(self._metrics) else {}

    def weights(self) -> Any:
        """The full state."""
        return {"updates": self.updates}


class FakeEngine:
    """Answers every prompt at once with one token and a fixed score."""

    def __init__(
        self, answers: int = 1, score: float = 1.0, fails: Callable[[Group], Exception | None] | None = None
    ) -> None:
        self._answers = answers
        self._score = score
        self._fails = fails or (lambda _: None)
        self._buffer: ReplayBuffer | None = None
        self._held: list[tuple[int, Any]] = [(-1, None)]
        self._staged: tuple[int, Any] | None = None
        self.calls: list[str] = []
        """What was asked of it: stage, flip, unflip, start, answer, close."""

    @property
    def version(self) -> int:
        """Version that it samples from."""
        return self._held[-1][0]

    @property
    def held(self) -> Any:
        """The weights in use."""
        return self._held[-1][1]

    def stage(self, weights: Any, version: int) -> None:
        """Copy weights beside those in use."""
        self.calls.append("stage")
        self._staged = (version, dict(weights))

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


class FakeTransport:
    """Stages and flips every engine; raises the errors it was given, one a publish (None for success)."""

    def __init__(
        self, errors: Sequence[Exception | None] = (), before_publish: Callable[[int], None] = lambda _: None
    ) -> None:
        self._errors = list(errors)
        self._before_publish = before_publish
        self.published: list[int] = []
        """Versions that arrived."""

    def publish(self, weights: Any, version: int, engines: Sequence[RolloutEngine]) -> Mapping[str, object]:
        """Bring weights to engines."""
        self._before_publish(version)
        if self._errors and (error := self._errors.pop(0)):
            raise error
        for engine in engines:
            engine.stage(weights, version)
        for engine in engines:
            engine.flip()
        self.published.append(version)
        return {}


class FakeBuffer(GroupBuffer):
    """The real buffer, which needs no trainer either; it raises if its ledger is off, and its policy is in the open."""

    def __init__(self, limits: Limits | None = None, *, clock: Clock | None = None) -> None:
        super().__init__(limits, clock=clock, strict=True)

    @property
    def policy(self) -> StalenessPolicy:
        """What the staleness plugin handed over."""
        return self._policy


class FakePrompts:
    """Numbered prompts, `count` of them or without end."""

    def __init__(self, count: int | None = None) -> None:
        self._left = count
        self._next = 0

    @property
    def exhausted(self) -> bool:
        """Whether there are no more."""
        return self._left == 0

    def take(self, count: int) -> Sequence[Prompt]:
        """The next prompts."""
        count = count if self._left is None else min(count, self._left)
        self._left = None if self._left is None else self._left - count
        self._next += count
        return [_prompt(number) for number in range(self._next - count, self._next)]

    def heldout(self, count: int) -> Sequence[Prompt]:
        """Prompts that `take` never gives."""
        return [_prompt(-1 - number) for number in range(count)]


def _prompt(number: int) -> Prompt:
    return Prompt(str(number), np.array([abs(number)]), str(number))


@attrs.define
class FakeSink:
    """Keeps rows in memory; refuses a step that is not the next higher one, or a row after `close`."""

    rows: list[tuple[int, Row]] = attrs.field(factory=list)
    state: str = "new"
    """new, open or closed."""

    def open(self) -> None:
        """Get ready."""
        self.state = "open"

    def write(self, step: int, row: Row) -> None:
        """Take one row."""
        if self.state != "open":
            raise ValueError(f"step {step} was written to a sink that is {self.state}")
        if self.rows and step <= self.rows[-1][0]:
            raise ValueError(f"step {step} was written after step {self.rows[-1][0]}")
        self.rows.append((step, row))

    def close(self) -> None:
        """Let go."""
        self.state = "closed"

    def column(self, key: str) -> list[tuple[int, object]]:
        """(step, value) of every row that has this key."""
        return [(step, row[key]) for step, row in self.rows if key in row]


class FakeTask:
    """Asks for a letter to be repeated."""

    alphabet = "ab"
    longest_prompt = 2
    size = None

    def train(self, seed: int) -> Iterator[tuple[str, str]]:
        """The same two prompts, without end."""
        while True:
            yield from [("a", "a"), ("b", "b")][:: 1 if seed % 2 == 0 else -1]

    def heldout(self, size: int) -> Sequence[tuple[str, str]]:
        """Prompts of two letters."""
        return [("ab", "ab")] * size

    def score(self, truth: str, answer: str) -> float:
        """1 for an exact answer."""
        return float(truth == answer)
