"""Write the row of a step to the sinks, after all of it was collected and only once its weights are published."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import attrs

from hooktrainer import Plugin, Priority, on
from hooktrainer._util import files
from hooktrainer.errors import carry
from hooktrainer.events import FitEnd, FitStart, StepEnd
from hooktrainer.metrics.record import Row
from hooktrainer.plugin import port
from hooktrainer.ports import RunState, Sink

_LOG: Final = logging.getLogger("hooktrainer")


@attrs.define(kw_only=True)
class LogAfterCollect(Plugin):
    """Write one row a step: the step's own metrics, its sync time and its validation."""

    sinks: Sequence[Sink] = port(named=True, default=("console", "jsonl"))
    """Where rows go: registered names, or classes as `package.module:Class`."""

    run: RunState = port()

    _written: dict[int, int] = attrs.field(factory=dict, init=False, repr=False)  # last step by sink
    _position: Path | None = attrs.field(default=None, init=False, repr=False)

    @on(FitStart, priority=Priority.PREPARE + 50, needs=["run.restored?"])
    def open(self, _event: FitStart) -> None:
        """Open the sinks before any work is done; a run that goes on takes back the rows that it will write again."""
        for sink in self.sinks:
            sink.open()
        if isinstance(self.run, RunState):  # a test that resumes nothing need not say so
            self._rewind(self.run)

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

    def _rewind(self, run: RunState) -> None:
        """Take back the rows after the step that the run goes on from, and say so once, by their steps."""
        step, directory = run.step, run.directory
        stubborn = [sink for sink in self.sinks if not hasattr(sink, "rewind")]
        if stubborn and directory is not None and directory.is_dir():
            self._position = directory / ".last_row"  # how far they are is known from nowhere else
        if run.resume == "off":
            return
        rewinds: list[Callable[[int], Sequence[int]]] = [sink.rewind for sink in self.sinks if hasattr(sink, "rewind")]
        taken = [steps[-1] for rewind in rewinds if (steps := rewind(step))]
        if (last := max([*taken, self._last_row()])) <= step:
            return
        again = f"{last - step} steps ({step + 1}-{last})" if last > step + 1 else f"1 step ({last})"
        came = f"{again} came after the checkpoint of step {step} and will be made again"
        if taken:
            _LOG.warning("%s; their rows are replaced", came)
        for sink in stubborn:
            _LOG.warning("%s cannot take rows back, but %s: in it they are replays", type(sink).__name__, came)

    def _last_row(self) -> int:
        try:
            return int(self._position.read_text(encoding="ascii")) if self._position is not None else 0
        except (OSError, ValueError):
            return 0

    def _write(self, step: int, row: Row) -> None:
        """Write to the sinks that do not have this step yet; an empty row says nothing and is left out."""

        def write(sink: Sink) -> None:
            if self._written.get(id(sink), -1) < step:
                sink.write(step, row)
                self._written[id(sink)] = step

        if row:
            if self._position is not None and step > self._last_row():
                files.replace(self._position, str(step).encode("ascii"))
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
