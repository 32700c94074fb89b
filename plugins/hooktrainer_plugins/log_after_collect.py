"""Write the row of a step to the sinks, after all of it was collected and only once its weights are published."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs

from hooktrainer import Plugin, Priority, on
from hooktrainer.errors import carry
from hooktrainer.events import FitEnd, FitStart, StepEnd
from hooktrainer.plugin import port
from hooktrainer.ports import Sink
from hooktrainer.record import Row


@attrs.define(kw_only=True)
class LogAfterCollect(Plugin):
    """Write one row a step: the step's own metrics, its sync time and its validation."""

    sinks: Sequence[Sink] = port(named=True, default=("console", "jsonl"))
    """Where rows go: registered names, or classes as `package.module:Class`."""

    _written: dict[int, int] = attrs.field(factory=dict, init=False, repr=False)  # last step by sink

    @on(FitStart, priority=Priority.PREPARE)
    def open(self, _event: FitStart) -> None:
        """Open the sinks before any work is done."""
        for sink in self.sinks:
            sink.open()

    @on(StepEnd, priority=Priority.REPORT, needs=["metrics.row"])
    def write(self, event: StepEnd) -> None:
        """Write the row of the step."""
        self._write(event.step, event.record.row)

    @on(FitEnd, priority=Priority.REPORT, needs=["metrics.row?"], makes=["sinks.written"])
    def write_unreported(self, event: FitEnd) -> None:
        """Write the last complete step if the run broke before its row was written."""
        if event.record is not None and event.record.sealed:
            self._write(event.step, event.record.row)

    @on(FitEnd, priority=Priority.CLEANUP, needs=["metrics.row?", "sinks.written"])
    def close(self, _event: FitEnd) -> None:
        """Close the sinks."""
        _to_each(self.sinks, lambda sink: sink.close())

    def _write(self, step: int, row: Row) -> None:
        """Write to the sinks that do not have this step yet; an empty row says nothing and is left out."""

        def write(sink: Sink) -> None:
            if self._written.get(id(sink), -1) < step:
                sink.write(step, row)
                self._written[id(sink)] = step

        if row:
            _to_each(self.sinks, write)


def _to_each(sinks: Sequence[Sink], action: Callable[[Sink], None]) -> None:
    """Do something to every sink; the first error is raised once all had their turn."""
    failures: list[Exception] = []
    for sink in sinks:
        try:
            action(sink)
        except Exception as error:  # noqa: BLE001 (raised below)
            failures.append(error)
    for another in failures[1:]:
        carry(failures[0], another, "at another sink")
    if failures:
        raise failures[0]
