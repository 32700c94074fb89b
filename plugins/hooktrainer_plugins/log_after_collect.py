"""Write the row of a step to the sinks, after all of its metrics were collected and its weights were published."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

import attrs

from hooktrainer import Plugin, Priority, on
from hooktrainer.errors import ConfigError, Fault, first_error
from hooktrainer.events import FitEnd, FitStart, StepEnd
from hooktrainer.metrics import Row, with_step
from hooktrainer.plugin import port
from hooktrainer.ports import RewindableSink, RunState, Sink, step_key_fault

_LOG: Final = logging.getLogger("hooktrainer")


@attrs.define(kw_only=True)
class LogAfterCollect(Plugin):
    """Write one row per step: the metrics of its own updates, its sync time and its validation."""

    sinks: Sequence[Sink] = port(named=True, default=("console", "jsonl"))
    """Sinks that rows are written to: registered names, `package.module:Class`, or `file.py:Class` relative to
    the YAML file."""

    run: RunState = port()

    _written: dict[int, int] = attrs.field(factory=dict, init=False, repr=False)  # last step by id of the sink
    _append_only: tuple[Sink, ...] = attrs.field(default=(), init=False, repr=False)  # sinks that cannot delete rows

    @on(FitStart, priority=Priority.PREPARE + 50, needs=["run.restored?"])
    def open(self, _event: FitStart) -> None:
        """Open the sinks before any work, and delete the rows that a resumed run writes again."""
        if faults := [Fault("", fault) for sink in self.sinks if (fault := step_key_fault(sink))]:
            raise ConfigError(faults)
        for sink in self.sinks:
            sink.open()
        self._append_only = tuple(sink for sink in self.sinks if not isinstance(sink, RewindableSink))
        if self.run.resume != "off":
            self._rewind(self.run.step)

    @on(StepEnd, priority=Priority.REPORT, needs=["metrics.row"])
    def write(self, event: StepEnd) -> None:
        """Write the row of the step."""
        self._write(event.step, event.record.row)

    @on(FitEnd, priority=Priority.REPORT, needs=["metrics.row?"], makes=["sinks.written"])
    def write_unreported(self, event: FitEnd) -> None:
        """Write the row of the last complete step if the run ended before its REPORT band."""
        if event.record is not None and event.record.sealed:
            self._write(event.step, event.record.row)

    @on(FitEnd, priority=Priority.CLEANUP, needs=["metrics.row?", "sinks.written"])
    def close(self, _event: FitEnd) -> None:
        """Close the sinks."""
        _for_each(self.sinks, lambda sink: sink.close())

    def _rewind(self, step: int) -> None:
        """Delete the rows after the step that the run resumes from, and log which steps are repeated."""
        rewindable = [sink for sink in self.sinks if isinstance(sink, RewindableSink)]
        if self.run.total_steps is not None and step >= self.run.total_steps:  # no step is run again
            for finished in rewindable:
                if (written := getattr(finished, "last_step", None)) is not None:
                    finished.rewind(max(step, written))
            return
        deleted = [steps[-1] for sink in rewindable if (steps := sink.rewind(step))]
        if (last := max([*deleted, self.run.logged_step if self._append_only else 0])) <= step:
            return
        repeated = f"{last - step} steps ({step + 1}-{last})" if last > step + 1 else f"1 step ({last})"
        if deleted:
            _LOG.warning("%s after the checkpoint of step %d are run again; their rows are replaced", repeated, step)
        for sink in self._append_only:
            _LOG.warning(
                "%s cannot delete rows: %s after the checkpoint of step %d will appear in it twice",
                type(sink).__name__,
                repeated,
                step,
            )

    def _write(self, step: int, row: Row) -> None:
        """Write to the sinks that do not have this step yet. An empty row is not written."""

        def write(sink: Sink) -> None:
            if self._written.get(id(sink), -1) < step:
                sink.write(step, row)
                self._written[id(sink)] = step

        if row:
            row = with_step(row, step)
            if self._append_only and step > self.run.logged_step:
                self.run.record_logged_step(step)  # the only record of how far such a sink is
            _for_each(self.sinks, write)


def _for_each(sinks: Sequence[Sink], action: Callable[[Sink], None]) -> None:
    """Call `action` with every sink, and raise the first error after all calls."""
    errors: list[BaseException] = []
    for sink in sinks:
        try:
            action(sink)
        except (Exception, SystemExit) as error:  # noqa: BLE001 (raised below)
            errors.append(error)
    if errors:
        raise first_error(errors, "at another sink")
