"""What an event hands to its handlers: `control` and `record`, limited to what the running handler declared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from hooktrainer.errors import RecordError
from hooktrainer.events import Event
from hooktrainer.metrics import Metric
from hooktrainer.metrics.record import Derive, Record, Row

if TYPE_CHECKING:
    from hooktrainer.bus.bus import Bus

ROW = "metrics.row"


class BusControl:
    """`event.control`: stop the run, or emit a declared signal."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._reason: str | None = None

    @property
    def reason(self) -> str | None:
        """Why the run is to stop; None while it goes on."""
        return self._reason

    def stop(self, reason: str) -> None:
        """Ask the loop to end after closing the cycle; the first reason wins."""
        self._bus.check_thread()
        if self._reason is None:
            self._reason = str(reason)

    def emit(self, event: Event) -> None:
        """Emit a signal that the running handler declared; it is delivered when its band ends."""
        self._bus.queue(event)


class BusRecord:
    """`event.record`: the record of a step."""

    def __init__(self, record: Record, bus: Bus) -> None:
        self._record = record
        self._bus = bus

    @property
    def step(self) -> int:
        """The step that it belongs to."""
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
        """The sealed row; wants `needs=["metrics.row"]`."""
        self._require("reads the row", "needs")
        return self._record.row

    def add(self, metrics: Mapping[str, Metric]) -> None:
        """Merge metrics into the open record; wants `adds=["metrics.row"]`."""
        self._record.add(metrics, self._require("adds metrics", "adds"))

    def seal(self, derive: Derive | None = None) -> Row:
        """Reduce everything to the final row; wants `makes=["metrics.row"]`."""
        self._require("seals the row", "makes")
        return self._record.seal(derive)

    def _require(self, verb: str, what: Literal["needs", "makes", "adds"]) -> str:
        label = self._bus.require(verb, what, ROW)
        if not self._bus.holds(self):
            raise RecordError(f"{label} kept the record of step {self.step} for later; use that of the event at hand")
        return label
