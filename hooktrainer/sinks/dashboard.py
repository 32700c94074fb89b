"""What a terminal shows of a run: how far it is, and the curves that tell whether it learns."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final

import attrs
from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from hooktrainer.record import Row

STEP_TIME: Final = "timing_s/step"
CURVES: Final[Mapping[str, str]] = {
    "val/score/mean": "val score",
    "critic/score/mean": "score",
    "actor/pg_loss": "loss",
    "actor/entropy": "entropy",
    "training/off_policy/staleness/mean": "staleness",
    "response_length/mean": "response length",
    STEP_TIME: "step seconds",
}
"""The curves, from top to bottom."""
_RECENT: Final = 20
"""Steps that the estimate of the time left looks at."""


def sparkline(values: Sequence[float], width: int, levels: str = "▁▂▃▄▅▆▇█") -> str:
    """A curve in one line of text, at most `width` wide; each column is the mean of its part of the values."""
    finite = [value for value in values if math.isfinite(value)]
    columns = min(width, len(finite))
    if columns <= 0:
        return ""
    edges = [len(finite) * column // columns for column in range(columns + 1)]
    means = [math.fsum(finite[first:end]) / (end - first) for first, end in pairwise(edges)]
    low, span = min(means), max(means) - min(means)
    if not span:
        return levels[0] * columns
    return "".join(levels[round((mean - low) / span * (len(levels) - 1))] for mean in means)


def duration(seconds: float) -> str:
    """Seconds as a clock shows them: 0:07, 3:05, 1:02:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


@attrs.define
class Dashboard:
    """The rows so far, as something that rich can draw."""

    title: str
    total_steps: int | None = None
    _step: int = attrs.field(default=0, init=False)
    _curves: dict[str, list[float]] = attrs.field(factory=lambda: {key: [] for key in CURVES}, init=False, repr=False)

    def add(self, step: int, row: Row) -> None:
        """Take in the row of a step."""
        self._step = step
        for key, curve in self._curves.items():
            value = row.get(key)
            if value is not None and not isinstance(value, Mapping):
                curve.append(float(value))

    def __rich_console__(self, _console: Console, options: ConsoleOptions) -> RenderResult:
        yield Group(self._progress(options.max_width), self._table(options))

    def _progress(self, width: int) -> Table:
        seconds, total = self._curves[STEP_TIME], self.total_steps
        parts: list[Text | ProgressBar] = [Text(self.title, style="bold"), Text(f"step {self._step}")]
        spent = duration(math.fsum(seconds))
        if total:
            parts[1] = Text(f"step {self._step}/{total}")
            parts.append(ProgressBar(total, self._step, width=max(10, min(40, width - 60))))
        if total and seconds:
            recent = seconds[-_RECENT:]
            left = duration(math.fsum(recent) / len(recent) * max(0, total - self._step))
            spent = f"{spent} · {left} left"
        grid = Table.grid(padding=(0, 2))
        grid.add_row(*parts, Text(spent, style="dim"))
        return grid

    def _table(self, options: ConsoleOptions) -> Table:
        width = max(8, min(60, options.max_width - 48))
        levels = "._-=+*#@" if options.ascii_only else "▁▂▃▄▅▆▇█"
        grid = Table.grid(padding=(0, 2))
        grid.add_column(width=max(map(len, CURVES.values())), no_wrap=True)
        grid.add_column(style="cyan", width=width, no_wrap=True)
        grid.add_column(style="bold", justify="right", width=9, no_wrap=True)
        grid.add_column(style="dim", no_wrap=True)
        for key, curve in self._curves.items():
            if curve:
                spread = f"{min(curve):.3g} to {max(curve):.3g}"
                grid.add_row(CURVES[key], sparkline(curve, width, levels), f"{curve[-1]:.3g}", spread)
        return grid
