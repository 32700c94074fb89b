"""The console sink: one line per step, or a live display on a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import attrs

from hooktrainer._util.streams import discard_stdout
from hooktrainer.events import Status
from hooktrainer.metrics import Row
from hooktrainer.ports import RunInfo

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live

    from hooktrainer.sinks.dashboard import Dashboard

_FIELDS: Final[Mapping[str, str]] = {
    "critic/score/mean": "score {:>7.3g}",
    "actor/pg_loss": "loss {:>7.3g}",
    "actor/entropy": "entropy {:>7.3g}",
    "actor/grad_norm": "grad_norm {:>7.3g}",
    "training/off_policy/staleness/mean": "staleness {:>7.3g}",
    "timing_s/step": "{:>7.3g} s",
    "val/score/mean": "val {:.3g}",
}
"""Fields of a line. The field that some steps lack is last, so that the columns of the others stay aligned."""


def plain_line(step: int, row: Row, total_steps: int | None = None) -> str:
    """Return the main metrics of a step in one line, without those that the row lacks."""
    of_total = f"/{total_steps}" if total_steps else ""
    fields = [f"step {step:>{len(str(total_steps or 0))}}{of_total}"]
    for key, field in _FIELDS.items():
        value = row.get(key)
        if value is not None and not isinstance(value, Mapping):
            fields.append(field.format(value))
    return "  ".join(fields)


@attrs.define
class ConsoleSink:
    """Prints rows to standard output; prints nothing more after the other end of a pipe is closed."""

    critical: bool = False
    """Whether an error ends the run. If not, the sink is dropped with a warning."""
    console: Console | None = attrs.field(default=None, init=False, repr=False)
    """The console to print on; one of standard output is made by `open` if there is none."""
    _dashboard: Dashboard | None = attrs.field(default=None, init=False, repr=False)
    _total_steps: int | None = attrs.field(default=None, init=False, repr=False)
    _live: Live | None = attrs.field(default=None, init=False, repr=False)
    _last_step: int | None = attrs.field(default=None, init=False, repr=False)

    def open(self, run: RunInfo) -> None:
        """Start the display, titled with the name of the run, if standard output is a terminal."""
        from rich.live import Live  # imported late, so that `plan` is fast

        from hooktrainer.sinks.dashboard import Dashboard, PipeConsole

        self._stop()
        self._total_steps, self._last_step = run.total_steps, None
        self.console = self.console or PipeConsole()
        self._dashboard = Dashboard(run.name, run.total_steps)
        if self.console.is_terminal and not self.console.is_dumb_terminal:
            # write() refreshes; a refresh thread would show nothing new.
            self._live = Live(self._dashboard, console=self.console, auto_refresh=False)
            self._live.start(refresh=True)

    def write(self, step: int, row: Row) -> None:
        """Print a row. A repeated call with the same step, as after an interrupt, is ignored."""
        if step == self._last_step:
            return
        self._last_step = step  # set before printing: an interrupted row must not be printed twice
        try:
            self._show(step, row)
        except Exception as error:  # noqa: BLE001 (user code may have replaced standard output)
            discard_stdout(error)

    def rewind(self, step: int) -> Sequence[int]:  # noqa: ARG002 (a new display shows no rows of an earlier process)
        """Return no steps: a new display shows no earlier rows."""
        return ()

    def close(self, status: Status) -> None:  # noqa: ARG002 (the command line prints how the run ended)
        """Stop the display; its last state remains on the terminal."""
        self._stop()

    def _stop(self) -> None:
        live, self._live = self._live, None
        if live is not None and self._dashboard is not None:
            self._dashboard.ended = True
            try:
                live.stop()
            except Exception as error:  # noqa: BLE001 (as above)
                discard_stdout(error)

    def _show(self, step: int, row: Row) -> None:
        if self.console is not None and self._live is None:
            line = plain_line(step, row, self._total_steps)
            self.console.print(line, markup=False, highlight=False, soft_wrap=True)
        elif self._live is not None and self._dashboard is not None:
            self._dashboard.add(step, row)
            self._live.refresh()
