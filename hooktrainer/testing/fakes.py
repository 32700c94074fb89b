"""Small fakes of ports; they need no torch and never wait."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from hooktrainer._util.timeline import KeptTimeline
from hooktrainer.events import Status
from hooktrainer.metrics import Row
from hooktrainer.ports import Answer, Clock, Example, Floats, Group, Prompt, RunInfo, Strategy, Tokens
from hooktrainer.replay.buffer import GroupBuffer
from hooktrainer.replay.options import ReplayOptions
from hooktrainer.replay.samples import KeptSamples
from hooktrainer.testing.fake_engine import scores_of


class ManualClock:
    """A clock that is advanced by hand."""

    def __init__(self, start: float = 0.0) -> None:
        self._now = start

    def now(self) -> float:
        """Return the seconds since the start."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Advance the time."""
        if seconds < 0:
            raise ValueError(f"time does not go back by {-seconds} s")
        self._now += seconds


class FakeLearner:
    """A learner that reports given metrics, one mapping per update. Its weights are the number of updates."""

    def __init__(self, metrics: Sequence[Mapping[str, object]] | Callable[[int], Mapping[str, object]] = ()) -> None:
        self._metrics = metrics
        self.skips_nonfinite = False
        self.batches: list[tuple[Group, ...]] = []
        """Groups of every update."""
        self.steps: list[int] = []
        """Steps that were started."""

        self._updates_before = 0

    @property
    def updates(self) -> int:
        """Return the number of updates, including those before a restart."""
        return self._updates_before + len(self.batches)

    def start_step(self, step: int) -> None:
        """Record the step."""
        self.steps.append(step)

    def update(self, groups: Sequence[Group]) -> Mapping[str, object]:
        """Record the batch and return the next metrics, or none after the last."""
        self.batches.append(tuple(groups))
        if callable(self._metrics):
            return self._metrics(self.updates)
        return self._metrics[self.updates - 1] if self.updates <= len(self._metrics) else {}

    def weights(self) -> Any:
        """Return the weights."""
        return {"updates": self.updates}

    def logprobs(self, tokens: Tokens) -> Floats:
        """Return the log-probabilities of a fake engine with the same weights."""
        return scores_of(self.weights(), tokens)

    def state_dict(self) -> Mapping[str, object]:
        """Return the number of updates."""
        return {"updates": self.updates}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the number of updates."""
        self._updates_before = state["updates"] - len(self.batches)


@attrs.define
class FakeKLControl:
    """A public coefficient."""

    kl_coeff: float = 0.1


@attrs.define
class FakeModelExport:
    """Writes an empty folder, and records each."""

    version: int = 1
    folders: list[Path] = attrs.field(factory=list)

    def check(self) -> None:
        """Do nothing."""

    def keep_adapters(self) -> None:
        """Do nothing."""

    def export(self, folder: Path) -> None:
        """Make the folder."""
        folder.mkdir(parents=True, exist_ok=True)
        self.folders.append(folder)


class FakeBuffer(GroupBuffer):
    """The real buffer. It raises if the ledger does not balance, and its policy and filter are public."""

    def __init__(self, limits: ReplayOptions | None = None, *, clock: Clock | None = None) -> None:
        super().__init__(limits, clock=clock, strict=True)

    @property
    def policy(self) -> Strategy:
        """Return the strategy set by the staleness plugin."""
        return self._policy

    @property
    def filter(self) -> Callable[[Group], bool]:
        """Return the filter of finished groups."""
        return self._filter


class FakePrompts:
    """Numbered prompts: `count` of them, or an endless source."""

    def __init__(self, count: int | None = None) -> None:
        self._left = count
        self._next = 0

    @property
    def exhausted(self) -> bool:
        """Return whether no prompts are left."""
        return self._left == 0

    def take(self, count: int) -> Sequence[Prompt]:
        """Return the next prompts."""
        count = count if self._left is None else min(count, self._left)
        self._left = None if self._left is None else self._left - count
        self._next += count
        return [_prompt(number) for number in range(self._next - count, self._next)]

    def heldout(self, count: int) -> Sequence[Prompt]:
        """Return prompts that `take` never returns."""
        return [_prompt(-1 - number) for number in range(count)]

    def take_metrics(self) -> Mapping[str, object]:
        """Return no metrics."""
        return {}

    def state_dict(self) -> Mapping[str, object]:
        """Return the number of the next prompt."""
        return {"next": self._next}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the number of the next prompt."""
        self.take(state["next"] - self._next)


def _prompt(number: int) -> Prompt:
    return Prompt(Example(str(number), {"truth": str(number)}, abs(number)), np.array([abs(number)]))


@attrs.define
class FakeSink:
    """Keeps rows in memory. Raises `ValueError` if steps do not ascend, or if the sink is not open."""

    rows: list[tuple[int, Row]] = attrs.field(factory=list)
    state: str = "new"
    """`new`, `open` or `closed`."""
    critical: bool = False
    """Whether an error ends the run."""
    run: RunInfo | None = None
    """The argument of `open`."""
    status: Status | None = None
    """The argument of the last `close`."""

    def open(self, run: RunInfo) -> None:
        """Accept rows."""
        self.state, self.run = "open", run

    def write(self, step: int, row: Row) -> None:
        """Append a row."""
        if self.state != "open":
            raise ValueError(f"step {step} was written to a sink that is {self.state}")
        if self.rows and step <= self.rows[-1][0]:
            raise ValueError(f"step {step} was written after step {self.rows[-1][0]}")
        self.rows.append((step, row))

    def close(self, status: Status) -> None:
        """Refuse further rows."""
        self.state, self.status = "closed", status

    def column(self, key: str) -> list[tuple[int, object]]:
        """Return (step, value) of every row that has this key."""
        return [(step, row[key]) for step, row in self.rows if key in row]


@attrs.define
class FakeRewindableSink(FakeSink):
    """A sink in memory that can delete rows."""

    def rewind(self, step: int) -> Sequence[int]:
        """Delete all rows after `step` and return their steps."""
        deleted = [written for written, _ in self.rows if written > step]
        self.rows = [(written, row) for written, row in self.rows if written <= step]
        return deleted


@attrs.define(eq=False)
class FakeLatestSamples(KeptSamples):
    """The real samples, which are kept from the start and can be set."""

    kept: bool = True


@attrs.define
class FakeSampleLog:
    """Keeps lines in memory."""

    lines: list[dict[str, Any]] = attrs.field(factory=list)
    shown: list[int] = attrs.field(factory=list)
    """Steps whose lines were printed."""
    error: Exception | None = None
    """The error that `write` raises."""

    def open(self) -> None:
        """Do nothing."""

    def write(self, step: int, lines: Sequence[Mapping[str, Any]]) -> None:
        """Append the lines."""
        if self.error is not None:
            raise self.error
        self.lines += [{"step": step, **line} for line in lines]

    def show(self, step: int, lines: Sequence[Mapping[str, Any]]) -> None:  # noqa: ARG002 (nothing is printed)
        """Record the step."""
        self.shown.append(step)

    def rewind(self, step: int) -> None:
        """Delete all lines after `step`."""
        self.lines = [line for line in self.lines if line["step"] <= step]


class FakeTimeline(KeptTimeline):
    """The real timeline, which keeps spans from the start."""

    def __init__(self) -> None:
        super().__init__(kept=True)


class FakeTask:
    """A task of repeating a letter."""

    alphabet = "ab"
    longest_prompt = 2
    size = None

    def train(self, seed: int) -> Iterator[Example]:
        """Yield the same two prompts endlessly."""
        while True:
            yield from [Example("a"), Example("b")][:: 1 if seed % 2 == 0 else -1]

    def heldout(self, size: int) -> Sequence[Example]:
        """Return prompts of two letters."""
        return [Example("ab")] * size

    def score(self, example: Example, answers: Sequence[Answer]) -> Sequence[float]:
        """Return 1 for an answer that repeats the prompt, else 0."""
        return [float(answer.text == example.prompt) for answer in answers]
