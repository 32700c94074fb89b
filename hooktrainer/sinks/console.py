"""The console sink: one line per step, or a live display on a terminal."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import attrs
from rich.console import Console
from rich.live import Live

from hooktrainer._util.streams import discard_stdout
from hooktrainer.metrics import Row
from hooktrainer.sinks.dashboard import STEP_TIME, Dashboard

_FIELDS: Final[Mapping[str, str]] = {
    "critic/score/mean": "score {:>7.3g}",
    "actor/pg_loss": "loss {:>7.3g}",
    "actor/entropy": "entropy {:>7.3g}",
    "actor/grad_norm": "grad_norm {:>7.3g}",
    "training/off_policy/staleness/mean": "staleness {:>7.3g}",
    STEP_TIME: "{:>7.3g} s",
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


class _Console(Console):
    """A console that raises `BrokenPipeError` for a closed pipe, where rich would end the process."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


@attrs.define
class ConsoleSink:
    """Prints rows to standard output; prints nothing more after the other end of a pipe is closed."""

    directory: Path = attrs.field(converter=Path)
    """Run directory. Its name is the title of the display."""
    total_steps: int | None = None
    console: Console = attrs.field(factory=_Console, kw_only=True, repr=False)
    _dashboard: Dashboard = attrs.field(init=False, repr=False)
    _live: Live | None = attrs.field(default=None, init=False, repr=False)
    _last_step: int | None = attrs.field(default=None, init=False, repr=False)

    @_dashboard.default
    def _empty(self) -> Dashboard:
        return Dashboard(self.directory.name, self.total_steps)

    def open(self) -> None:
        """Start the display if standard output is a terminal."""
        self.close()
        self._dashboard, self._last_step = self._empty(), None
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

    def close(self) -> None:
        """Stop the display; its last state remains on the terminal."""
        live, self._live = self._live, None
        if live is not None:
            self._dashboard.ended = True
            try:
                live.stop()
            except Exception as error:  # noqa: BLE001 (as above)
                discard_stdout(error)

    def _show(self, step: int, row: Row) -> None:
        if self._live is None:
            line = plain_line(step, row, self.total_steps)
            self.console.print(line, markup=False, highlight=False, soft_wrap=True)
        else:
            self._dashboard.add(step, row)
            self._live.refresh()
