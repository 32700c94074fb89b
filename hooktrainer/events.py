"""The events of a run, one frozen class each; the snake-case name of a class is its signal.

    fit_start
      step_start                                  step k
        iteration_start                           x P
          dispatch -> sample -> learn             the only work of the loop itself
        iteration_end                             the metrics of one update, collected here
      step_end                                    prepare, collect, sync, evaluate, reduce, report, save
        weights_synced                            version k is confirmed on every engine
    fit_end                                       always, exactly once, with a status

A step is complete once its weights are confirmed; it is never discarded after that. A handler takes one argument, the
event. `event.control` stops the run and emits declared signals; `event.record` is the open record of the step.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import IntEnum
from typing import ClassVar, Final, Literal, Protocol, TypeAlias, cast

import attrs

from hooktrainer.errors import BusError
from hooktrainer.metrics import Derive, Metric, Row, Term

Status: TypeAlias = Literal["completed", "already_done", "stopped", "interrupted", "failed"]


class Priority(IntEnum):
    """Bands of a signal, in running order. A band contains the numbers from its own up to the next band."""

    PREPARE = 100
    COLLECT = 200
    SYNC = 300
    EVALUATE = 400
    REDUCE = 500
    REPORT = 600
    SAVE = 700
    CLEANUP = 800

    @classmethod
    def band(cls, number: int) -> Priority:
        """Return the band that contains an integer priority. Raises `ValueError` below the first band."""
        at_or_below = [band for band in cls if band <= number]
        if not at_or_below:
            raise ValueError(f"{number}, which lies before the first band, {min(cls).name} {min(cls).value}")
        return at_or_below[-1]


PRIORITY_HINT: Final = (
    f"Write a number such as {Priority.SYNC + 50}, or Priority.SYNC + 50 in Python. "
    f"The bands are {', '.join(f'{band.name} {band.value}' for band in Priority)}."
)
"""How a priority is written, for messages."""


class Control(Protocol):
    """`event.control`: the actions of a handler on the run."""

    @property
    def reason(self) -> str | None:
        """Reason of the requested stop; None while there is none."""
        ...

    def stop(self, reason: str) -> None:
        """Stop the run after the current step; the first reason is kept."""
        ...

    def emit(self, event: Event) -> None:
        """Emit a signal that the running handler declared; it is delivered when the handler's band ends."""
        ...


class StepRecord(Protocol):
    """`event.record`: the record of the event's step, limited to the declarations of the running handler.

    `add` requires `adds=["metrics.row"]`, `row` requires `needs=["metrics.row"]`, `seal` requires
    `makes=["metrics.row"]`.
    """

    @property
    def step(self) -> int:
        """Step of the record."""
        ...

    @property
    def sealed(self) -> bool:
        """Whether the row is final."""
        ...

    @property
    def empty(self) -> bool:
        """Whether no metric was added yet."""
        ...

    @property
    def row(self) -> Row:
        """The sealed row."""
        ...

    def add(self, metrics: Mapping[str, Metric | Term]) -> None:
        """Merge metrics into the open record."""
        ...

    def seal(self, derive: Derive | None = None) -> Row:
        """Reduce all metrics to the final row and return it."""
        ...


class _NotSent:
    """Placeholder for `control` and `record` of an event that no bus has sent yet."""

    def __getattr__(self, name: str) -> object:
        raise BusError(
            f"'{name}' was used on an event that was not sent by a bus; in a test, send it with FakeBus.fire"
        )


_NOT_SENT = _NotSent()


@attrs.frozen(kw_only=True)
class Event:
    """Base of all events. A plugin defines a signal by a subclass, and declares it in `emits` where it is sent."""

    signal: ClassVar[str] = "event"

    control: Control = attrs.field(default=cast("Control", _NOT_SENT), repr=False, eq=False)

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        cls.signal = snake_case(cls.__name__)


def snake_case(class_name: str) -> str:
    """Convert a class name: `IterationEnd` -> `iteration_end`, `KLGuard` -> `kl_guard`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", class_name).lower()


@attrs.frozen(kw_only=True)
class FitStart(Event):
    """The run starts; no prompt was dispatched yet."""


@attrs.frozen(kw_only=True)
class StepEvent(Event):
    """Base of the events that belong to a step."""

    step: int
    version: int
    """Weight version of the engines when the event was sent."""
    record: StepRecord = attrs.field(default=cast("StepRecord", _NOT_SENT), repr=False, eq=False)


@attrs.frozen(kw_only=True)
class StepStart(StepEvent):
    """Step `step` starts."""


@attrs.frozen(kw_only=True)
class IterationStart(StepEvent):
    """An iteration starts; its groups are dispatched and sampled next."""

    iteration: int
    """Index in the step, from 0."""


@attrs.frozen(kw_only=True)
class IterationEnd(StepEvent):
    """One update was made."""

    iteration: int
    """Index in the step, from 0."""
    groups: tuple[int, ...] = ()
    """Staleness of each trained group."""
    in_flight: tuple[int, ...] = ()
    """Versions published while each of these groups was in flight."""
    updates_behind: tuple[int, ...] = ()
    """Learner updates that each of these groups is behind: (S - 1) x P + iteration."""
    spans: tuple[int, ...] = ()
    """Number of versions that generated each trajectory; 1 for a trajectory of one version."""
    evicted: tuple[int, ...] = ()
    """Staleness of each group that was evicted since the last iteration."""
    samples: int = 0
    """Trained trajectories, without padding."""
    metrics: Mapping[str, object] = attrs.field(factory=dict, repr=False)
    """Read-only numbers, lists of numbers or `Metric`s, from the learner, the engine, the buffer and the loop."""


@attrs.frozen(kw_only=True)
class StepEnd(StepEvent):
    """All updates of the step were made; its weights are published by handlers of this event."""

    iterations: int
    """Updates of the step; fewer than P if the data ended or the run was stopped."""
    groups: int = 0
    """Groups trained in the step."""
    evicted: tuple[int, ...] = ()
    """Staleness of each group that was evicted after the last iteration because the data ended."""
    last: bool = False
    """Whether this is expected to be the last step of the run."""


@attrs.frozen(kw_only=True)
class WeightsSynced(StepEvent):
    """Every engine holds `version`, which equals `step`."""

    last: bool = False
    """Whether this is expected to be the last step of the run."""


@attrs.frozen(kw_only=True)
class FitEnd(Event):
    """The run ends; every handler of this event is called, even if another one raises."""

    status: Status
    reason: str = ""
    step: int = 0
    """Last complete step; 0 if there is none."""
    version: int = 0
    record: StepRecord | None = attrs.field(default=None, repr=False, eq=False)
    """Record of `step` if its row was not reported yet."""
    summary: Mapping[str, float] = attrs.field(factory=dict, repr=False)
    """Steps, seconds, handler time that no row contains, and the calls, total and longest time of every handler."""


EVENTS: tuple[type[Event], ...] = (FitStart, StepStart, IterationStart, IterationEnd, StepEnd, WeightsSynced, FitEnd)
"""The events of the loop, in the order of the diagram above."""
