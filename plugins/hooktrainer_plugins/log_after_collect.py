"""Write the row of a step to the sinks, after all of its metrics were collected and its weights were published."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

import attrs

from hooktrainer import Plugin, Priority, on
from hooktrainer.errors import ConfigError, Fault, first_error, line_of
from hooktrainer.events import FitEnd, FitStart, IterationEnd, StepEnd
from hooktrainer.metrics import Row, RuleTable, with_step
from hooktrainer.plugin import port
from hooktrainer.ports import IterationSink, RewindableSink, RunState, Sink, is_critical, step_key_fault

_LOG: Final = logging.getLogger("hooktrainer")


@attrs.define(kw_only=True)
class LogAfterCollect(Plugin):
    """Write one row per step: the metrics of its own updates, its sync time and its validation.

    A sink that fails is dropped with a warning, unless it is critical.
    """

    sinks: Sequence[Sink] = port(named=True, default=("console", "jsonl"))
    """Sinks that rows are written to, each a name or a mapping with `use` and options. A name is a registered one,
    `package.module:Class`, or `file.py:Class` relative to the YAML file."""

    run: RunState = port()

    _active: tuple[Sink, ...] = attrs.field(default=(), init=False, repr=False)  # without those that were dropped
    _written: dict[int, int] = attrs.field(factory=dict, init=False, repr=False)  # last step by id of the sink
    _updates: list[tuple[int, Row]] = attrs.field(factory=list, init=False, repr=False)  # of the open step, by number
    _written_updates: dict[int, int] = attrs.field(factory=dict, init=False, repr=False)  # last one by id of the sink
    _append_only: tuple[Sink, ...] = attrs.field(default=(), init=False, repr=False)  # sinks that cannot delete rows

    @on(FitStart, priority=Priority.PREPARE + 50, needs=["run.restored?"])
    def open(self, _event: FitStart) -> None:
        """Open the sinks before any work, and delete the rows that a resumed run writes again."""
        if faults := [Fault("", fault) for sink in self.sinks if (fault := step_key_fault(sink))]:
            raise ConfigError(faults)
        self._active, info = tuple(self.sinks), self.run.info
        self._for_each(lambda sink: sink.open(info))
        self._append_only = tuple(sink for sink in self._active if not isinstance(sink, RewindableSink))
        if self.run.resume != "off":
            self._rewind(self.run.step)

    @on(IterationEnd, priority=Priority.REPORT, needs=["iteration.metrics"])
    def keep(self, event: IterationEnd) -> None:
        """Keep the metrics of an update until its step is complete, for the sinks that write each update."""
        if event.iteration == 0:
            self._updates.clear()
        if any(isinstance(sink, IterationSink) and sink.per_iteration for sink in self._active):
            number = (event.step - 1) * self.run.info.iterations_per_step + event.iteration + 1
            metrics = RuleTable().to_metrics(event.metrics, event.samples)
            values = {key: metric.value for key, metric in metrics.items() if metric.value is not None}
            self._updates.append((number, with_step(values, event.step)))

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
    def close(self, event: FitEnd) -> None:
        """Close the sinks, also those that were dropped."""
        dropped = [sink for sink in self.sinks if not any(sink is active for active in self._active)]
        self._active = tuple(self.sinks)
        self._for_each(lambda sink: sink.close(event.status), quiet=dropped)

    def _rewind(self, step: int) -> None:
        """Delete the rows after the step that the run resumes from, and log which steps are repeated."""
        steps_left = self.run.total_steps is None or step < self.run.total_steps
        deleted: list[int] = []

        def rewind(sink: Sink) -> None:
            if not isinstance(sink, RewindableSink):
                return
            if steps_left:
                deleted.extend([*sink.rewind(step)][-1:])
            elif (written := getattr(sink, "last_step", None)) is not None:
                sink.rewind(max(step, written))

        self._for_each(rewind)
        last = max([*deleted, self.run.logged_step if self._append_only else 0])
        if not steps_left or last <= step:
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
                self._write_updates(sink)
                sink.write(step, row)
                self._written[id(sink)] = step

        if row:
            row = with_step(row, step)
            if self._append_only and step > self.run.logged_step:
                self.run.record_logged_step(step)  # the only record of how far such a sink is
            self._for_each(write)

    def _write_updates(self, sink: Sink) -> None:
        """Write the updates of the step that the sink does not have yet."""
        if not (isinstance(sink, IterationSink) and sink.per_iteration):
            return
        for number, row in self._updates:
            if self._written_updates.get(id(sink), -1) < number:
                sink.write_iteration(number, row)
                self._written_updates[id(sink)] = number

    def _for_each(self, action: Callable[[Sink], None], *, quiet: Sequence[Sink] = ()) -> None:
        """Call `action` with every active sink. Drop those that fail, or raise the first error after all calls.

        Errors of sinks in `quiet` are ignored, since their first one was logged.
        """
        errors: list[BaseException] = []
        for sink in self._active:
            try:
                action(sink)
            except (Exception, SystemExit) as error:  # noqa: BLE001 (raised or logged)
                if any(sink is failed for failed in quiet):
                    continue
                if is_critical(sink) or isinstance(error, (ConfigError, SystemExit)):
                    errors.append(error)
                else:
                    self._drop(sink, error)
        if errors:
            raise first_error(errors, "at another sink")

    def _drop(self, failed: Sink, error: Exception) -> None:
        self._active = tuple(sink for sink in self._active if sink is not failed)
        name = type(failed).__name__
        self.run.record_dropped_sink(name)
        _LOG.warning("the sink %s failed and is dropped; the run continues without it: %s", name, line_of(error))
