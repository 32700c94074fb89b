"""The objects behind `event.control` and `event.record`, limited to the declarations of the running handler."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, Protocol, TypeAlias

from hooktrainer.errors import MAX_LINE, RecordError, message_of
from hooktrainer.events import Control, Event, StepRecord
from hooktrainer.metrics import Derive, Metric, Record, Row, Term

Declaration: TypeAlias = Literal["needs", "makes", "adds"]
ROW: Final = "metrics.row"


class Delivery(Protocol):
    """The part of the bus that `RunControl` and `CheckedRecord` use."""

    def check_thread(self) -> None:
        """Raise `BusError` unless this is the thread of the loop."""
        ...

    def queue(self, event: Event) -> None:
        """Queue an event that the running handler declared in `emits`. Raises `BusError` for any other event."""
        ...

    def require(self, verb: str, declaration: Declaration, key: str) -> str:
        """Return the label of the running handler. Raises `BusError` unless it declared the key."""
        ...

    def holds(self, record: StepRecord) -> bool:
        """Return whether this is the record of the event being sent."""
        ...


class RunControl(Control):
    """`event.control`: stop the run, or emit a declared signal."""

    def __init__(self, bus: Delivery) -> None:
        self._bus = bus
        self._reason: str | None = None

    @property
    def reason(self) -> str | None:
        """Reason of the requested stop; None while there is none."""
        return self._reason

    def stop(self, reason: str) -> None:
        """Stop the run after the current step; the first reason is kept, and a long one is shortened."""
        self._bus.check_thread()
        if self._reason is None:
            self._reason = message_of(reason, MAX_LINE)

    def emit(self, event: Event) -> None:
        """Emit a signal that the running handler declared; it is delivered when the handler's band ends."""
        self._bus.queue(event)


class CheckedRecord(StepRecord):
    """`event.record`: the record of a step. Every access is checked against the running handler's declarations."""

    def __init__(self, record: Record, bus: Delivery) -> None:
        self._record = record
        self._bus = bus

    @property
    def step(self) -> int:
        """Step of the record."""
        return self._record.step

    @property
    def sealed(self) -> bool:
        """Whether the row is final."""
        return self._record.sealed

    @property
    def empty(self) -> bool:
        """Whether no metric was added yet."""
        return self._record.empty

    @property
    def row(self) -> Row:
        """The sealed row; requires `needs=["metrics.row"]`."""
        self._require("reads the row", "needs")
        return self._record.row

    def add(self, metrics: Mapping[str, Metric | Term]) -> None:
        """Merge metrics into the open record; requires `adds=["metrics.row"]`."""
        self._record.add(metrics, self._require("adds metrics", "adds"))

    def seal(self, derive: Derive | None = None) -> Row:
        """Reduce all metrics to the final row; requires `makes=["metrics.row"]`."""
        self._require("seals the row", "makes")
        return self._record.seal(derive)

    def _require(self, verb: str, declaration: Declaration) -> str:
        label = self._bus.require(verb, declaration, ROW)
        if not self._bus.holds(self):
            raise RecordError(
                f"{label} used the record of step {self.step} after its event; use the record of the current event"
            )
        return label
