"""The live display of a run: its progress and the curves of its main metrics."""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Mapping, Sequence
from itertools import compress, pairwise
from typing import Final

import attrs
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

from hooktrainer.metrics import Row

STEP_TIME: Final = "timing_s/step"
CURVES: Final[Mapping[str, str]] = {
    "val/score/mean": "val score",
    "critic/score/mean": "score",
    "actor/pg_loss": "loss",
    "actor/entropy": "entropy",
    "training/off_policy/staleness/mean": "staleness",
    "response_length/mean": "response length",
    STEP_TIME: "step seconds",
    "perf/throughput": "tokens/s",
}
"""Curves from top to bottom. A small terminal shows the first ones."""
_HEADINGS: Final = ("", "curve", "now", "min to max")
_LABELS, _NUMBERS, _GAP = max(map(len, CURVES.values())), 9, 2
_SHORTEST_CURVE, _LONGEST_CURVE = 8, 60
_SMALLEST_SPAN: Final = 0.5
"""Smallest range that fills the height, relative to the largest magnitude. A range of 1 to 1.25 does not."""
_RECENT: Final = 20
"""Number of last steps for the estimate of the remaining time."""


def sparkline(values: Sequence[float], width: int, levels: str = "▁▂▃▄▅▆▇█") -> str:
    """Return a curve as one line of text, at most `width` wide; each column is the mean of its part of the values.

    The lowest value is at the bottom. The highest is at the top unless the range is small relative to the values.
    """
    finite = [value for value in values if math.isfinite(value)]
    columns = min(width, len(finite))
    if columns <= 0:
        return ""
    edges = [len(finite) * column // columns for column in range(columns + 1)]
    means = [math.fsum(finite[first:end]) / (end - first) for first, end in pairwise(edges)]
    low, high = min(means), max(means)
    span = max(high - low, _SMALLEST_SPAN * max(abs(low), abs(high)))
    if not span:
        return levels[0] * columns
    return "".join(levels[round((mean - low) / span * (len(levels) - 1))] for mean in means)


def duration(seconds: float) -> str:
    """Format seconds as 0:07, 3:05 or 1:02:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _text(value: float) -> str:
    return f"{value:,.0f}" if 1e3 <= abs(value) < 1e7 else f"{value:.3g}"


class PipeConsole(Console):
    """A console that raises `BrokenPipeError` for a closed pipe, where rich would end the process."""

    def on_broken_pipe(self) -> None:
        """Raise the error that rich caught."""
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


@attrs.define
class Dashboard:
    """The rows so far, as a rich renderable."""

    title: str
    total_steps: int | None = None
    ended: bool = False
    """Whether this is the last drawing. Earlier ones end with an empty line, where a terminal may echo `^C`."""
    _step: int = attrs.field(default=0, init=False)
    _curves: dict[str, list[float]] = attrs.field(factory=lambda: {key: [] for key in CURVES}, init=False, repr=False)

    def add(self, step: int, row: Row) -> None:
        """Add the row of a step."""
        self._step = step
        for key, curve in self._curves.items():
            value = row.get(key)
            if value is not None and not isinstance(value, Mapping):
                curve.append(float(value))

    def __rich_console__(self, _console: Console, options: ConsoleOptions) -> RenderResult:
        parts: list[RenderableType] = [self._progress(options.max_width)]
        shown = [key for key, curve in self._curves.items() if curve][: max(0, options.size.height - 3)]
        if shown:
            parts.append(self._table(shown, options))
        if not self.ended and options.size.height > 1:
            parts.append(Text())
        yield Group(*parts)

    def _progress(self, width: int) -> Table:
        seconds, total = self._curves[STEP_TIME], self.total_steps
        spent = duration(math.fsum(seconds))
        if total and seconds:
            recent = seconds[-_RECENT:]
            left = duration(math.fsum(recent) / len(recent) * max(0, total - self._step))
            spent = f"{spent} · {left} left"
        steps = f"step {self._step}/{total}" if total else f"step {self._step}"
        room = width - sum(map(len, (self.title, steps, spent))) - 3 * _GAP
        cells: list[RenderableType] = [Text(self.title, style="bold"), Text(steps), Text(spent, style="dim")]
        if total and room >= 10:
            cells.insert(2, ProgressBar(total, self._step, width=min(40, room)))
        grid = Table.grid(*(Column(no_wrap=True) for _ in cells), padding=(0, _GAP))
        grid.add_row(*cells)
        return grid

    def _table(self, shown: Sequence[str], options: ConsoleOptions) -> Table:
        """Return a line for each curve. A narrow terminal omits the range first, then the curve."""
        spreads = {key: f"{_text(min(self._curves[key]))} to {_text(max(self._curves[key]))}" for key in shown}
        range_width = max(map(len, (*spreads.values(), _HEADINGS[3])))
        room = options.max_width - _LABELS - _NUMBERS - 2 * _GAP
        with_range = room >= _SHORTEST_CURVE + _GAP + range_width
        width = min(_LONGEST_CURVE, room - (_GAP + range_width if with_range else 0))
        columns = [
            Column(width=_LABELS, no_wrap=True),
            Column(style="cyan", width=width, no_wrap=True),
            Column(style="bold", width=_NUMBERS, no_wrap=True, justify="right"),
            Column(style="dim", width=range_width, no_wrap=True),
        ]
        kept = [True, width >= _SHORTEST_CURVE, True, with_range]
        levels = "._-=+*#@" if options.ascii_only else "▁▂▃▄▅▆▇█"
        grid = Table.grid(*compress(columns, kept), padding=(0, _GAP))
        grid.add_row(*compress((Text(heading, style="dim") for heading in _HEADINGS), kept))
        for key in shown:
            curve = self._curves[key]
            cells = (CURVES[key], sparkline(curve, width, levels), _text(curve[-1]), spreads[key])
            grid.add_row(*compress(cells, kept))
        return grid
