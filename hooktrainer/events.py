"""The moments of a run, one frozen class each; the snake-case name of a class is its signal.

    fit_start
      step_start                                  step k
        iteration_start                           x P
          dispatch -> sample -> learn             the only work the core does itself
        iteration_end                             the metrics of one update, collected here
      step_end                                    prepare, collect, sync, evaluate, reduce, report, save
        weights_synced                            version k is confirmed on every engine
    fit_end                                       always, exactly once, with a status

A step is complete once its weights are confirmed, and stands from then on. A handler takes the event and nothing else.
`event.control` stops the run and emits declared signals; `event.record` is the open record of the step.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import IntEnum
from typing import ClassVar, Literal, Protocol, TypeAlias, cast

import attrs

from hooktrainer.errors import BusError
from hooktrainer.metrics import Metric
from hooktrainer.metrics.record import Derive, Row

Status: TypeAlias = Literal["completed", "already_done", "stopped", "interrupted", "failed"]


class Priority(IntEnum):
    """Bands of a signal, in running order; a band spans from its number to the next."""

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
        """The band that an integer priority lies in. Raises `ValueError` below the first."""
        at_or_below = [band for band in cls if band <= number]
        if not at_or_below:
            raise ValueError(f"{number}, which lies before the first band, {min(cls).name} {min(cls).value}")
        return at_or_below[-1]


class Control(Protocol):
    """What a handler may do to the run."""

    @property
    def reason(self) -> str | None:
        """Why the run is to stop; None while it goes on."""
        ...

    def stop(self, reason: str) -> None:
        """Ask the loop to end after closing the cycle; the first reason wins."""
        ...

    def emit(self, event: Event) -> None:
        """Emit a signal that the running handler declared; it is delivered when its band ends."""
        ...


class StepRecord(Protocol):
    """The record of the event's step, as far as the running handler declared it.

    `add` wants `adds=["metrics.row"]`, `row` wants `needs=["metrics.row"]`, `seal` wants `makes=["metrics.row"]`.
    """

    @property
    def step(self) -> int:
        """The step that it belongs to."""
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

    def add(self, metrics: Mapping[str, Metric]) -> None:
        """Merge metrics into the open record."""
        ...

    def seal(self, derive: Derive | None = None) -> Row:
        """Reduce everything to the final row."""
        ...


class _NotSent:
    """Stands in for the handles of an event that no bus has sent yet."""

    def __getattr__(self, name: str) -> object:
        raise BusError(f"'{name}' was used on an event that was not sent by a bus")


_NOT_SENT = _NotSent()


@attrs.frozen(kw_only=True)
class Event:
    """Base of all events. For a signal of your own, subclass it, and declare it in `emits` where it is sent."""

    signal: ClassVar[str] = "event"

    control: Control = attrs.field(default=cast("Control", _NOT_SENT), repr=False, eq=False)

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        cls.signal = snake_case(cls.__name__)


def snake_case(class_name: str) -> str:
    """`IterationEnd` -> `iteration_end`, `KLGuard` -> `kl_guard`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", class_name).lower()


@attrs.frozen(kw_only=True)
class FitStart(Event):
    """The run begins; nothing was dispatched yet."""


@attrs.frozen(kw_only=True)
class StepEvent(Event):
    """Base of the events that belong to a step."""

    step: int
    version: int
    """Version that engines held when the event was sent."""
    record: StepRecord = attrs.field(default=cast("StepRecord", _NOT_SENT), repr=False, eq=False)


@attrs.frozen(kw_only=True)
class StepStart(StepEvent):
    """Step `step` begins."""


@attrs.frozen(kw_only=True)
class IterationStart(StepEvent):
    """An iteration begins; its groups are dispatched and sampled next."""

    iteration: int
    """Place in the step, from 0."""


@attrs.frozen(kw_only=True)
class IterationEnd(StepEvent):
    """One update was made."""

    iteration: int
    """Place in the step, from 0."""
    groups: tuple[int, ...] = ()
    """Staleness of each group that was trained on."""
    in_flight: tuple[int, ...] = ()
    """Versions that passed while each of these groups was being generated."""
    updates_behind: tuple[int, ...] = ()
    """Updates of the learner that each of these groups is behind: (S - 1) x P + iteration."""
    spans: tuple[int, ...] = ()
    """Versions that each trajectory was generated across; 1 is a whole trajectory on one version."""
    evicted: tuple[int, ...] = ()
    """Staleness of each group that was evicted since the last iteration."""
    samples: int = 0
    """Trajectories trained on, padding not counted."""
    metrics: Mapping[str, object] = attrs.field(factory=dict, repr=False)
    """Read-only: numbers, lists of numbers, or `Metric`s; from learner, engines, buffer and loop."""


@attrs.frozen(kw_only=True)
class StepEnd(StepEvent):
    """All updates of the step were made; its weights are published from here."""

    iterations: int
    """Updates made; fewer than P if data ended or a stop was asked for."""
    groups: int = 0
    """Groups trained on in the step."""
    evicted: tuple[int, ...] = ()
    """Staleness of each group that was evicted after the last iteration, when the data ended."""
    last: bool = False
    """Forecast: no step follows."""


@attrs.frozen(kw_only=True)
class WeightsSynced(StepEvent):
    """Every engine confirmed `version`, which equals `step`."""

    last: bool = False
    """Forecast: no step follows."""


@attrs.frozen(kw_only=True)
class FitEnd(Event):
    """The run is over; every plugin gets this, even if another one raises on it."""

    status: Status
    reason: str = ""
    step: int = 0
    """The last complete step; 0 if there is none."""
    version: int = 0
    record: StepRecord | None = attrs.field(default=None, repr=False, eq=False)
    """The record of `step` if it was not reported yet."""
    summary: Mapping[str, float] = attrs.field(factory=dict, repr=False)
    """Steps, seconds, handler time that no row holds by plugin; calls, total and longest time of every handler."""


EVENTS: tuple[type[Event], ...] = (FitStart, StepStart, IterationStart, IterationEnd, StepEnd, WeightsSynced, FitEnd)
"""The events of the core, in the order of the drawing."""
