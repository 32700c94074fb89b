"""Rows for whoever watches: one line a step, or on a terminal a display that is drawn anew with every step."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import attrs
from rich.console import Console
from rich.live import Live

from hooktrainer._util.streams import give_up_stdout
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
"""The fields of a line; the one that not every step has stands last, so that the others stay in their columns."""


def plain_line(step: int, row: Row, total_steps: int | None = None) -> str:
    """The main metrics of a step in one line; what the row does not have is left out."""
    of_total = f"/{total_steps}" if total_steps else ""
    fields = [f"step {step:>{len(str(total_steps or 0))}}{of_total}"]
    for key, field in _FIELDS.items():
        value = row.get(key)
        if value is not None and not isinstance(value, Mapping):
            fields.append(field.format(value))
    return "  ".join(fields)


class _Console(Console):
    """Leaves it to the sink what becomes of a run whose lines nobody reads; rich would end the process."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


@attrs.define
class ConsoleSink:
    """Shows the rows on standard output, until nobody reads them any more."""

    directory: Path = attrs.field(converter=Path)
    """The run directory; its name is the title of the display."""
    total_steps: int | None = None
    console: Console = attrs.field(factory=_Console, kw_only=True, repr=False)
    _dashboard: Dashboard = attrs.field(init=False, repr=False)
    _live: Live | None = attrs.field(default=None, init=False, repr=False)
    _last_step: int | None = attrs.field(default=None, init=False, repr=False)

    @_dashboard.default
    def _empty(self) -> Dashboard:
        return Dashboard(self.directory.name, self.total_steps)

    def open(self) -> None:
        """Begin the display, if there is a terminal to show it on."""
        self.close()
        self._dashboard, self._last_step = self._empty(), None
        if self.console.is_terminal and not self.console.is_dumb_terminal:
            # Drawn by write() alone: a thread that refreshes would show nothing new.
            self._live = Live(self._dashboard, console=self.console, auto_refresh=False)
            self._live.start(refresh=True)

    def write(self, step: int, row: Row) -> None:
        """Show a row; one that is handed over again, since an interruption hid that it was shown, is left out."""
        if step == self._last_step:
            return
        self._last_step = step  # before it is shown: what is interrupted in the middle must not come twice
        try:
            self._show(step, row)
        except OSError as error:
            give_up_stdout(error)

    def rewind(self, step: int) -> Sequence[int]:  # noqa: ARG002 (nothing of another process is on this display)
        """Nothing that was shown can mislead: it is a new display."""
        return ()

    def close(self) -> None:
        """End the display; its last state stays on the terminal."""
        live, self._live = self._live, None
        if live is not None:
            self._dashboard.ended = True
            try:
                live.stop()
            except OSError as error:
                give_up_stdout(error)

    def _show(self, step: int, row: Row) -> None:
        if self._live is None:
            line = plain_line(step, row, self.total_steps)
            self.console.print(line, markup=False, highlight=False, soft_wrap=True)
        else:
            self._dashboard.add(step, row)
            self._live.refresh()
