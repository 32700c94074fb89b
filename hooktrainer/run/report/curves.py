"""Curves of a metric over the steps: the mean and the range over seeds, with few enough points for a page."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Final

import attrs
import numpy as np
from numpy.typing import NDArray

from hooktrainer.run.rows import Column

_Numbers = NDArray[np.float64]
_MAX_RANGES: Final = 200
"""Ranges of steps without a finite value that are marked; further ones are joined with the last."""


@attrs.frozen(eq=False)
class Curve:
    """Points of a curve, at ascending steps."""

    steps: NDArray[np.int64]
    values: _Numbers
    low: _Numbers | None = None
    """The lower end of the range around each value; None without a range."""
    high: _Numbers | None = None
    nonfinite: Sequence[tuple[int, int]] = ()
    """Ranges of steps whose rows have NaN or an infinity."""

    rows: int = 1
    """Rows that each point stands for."""

    def thinned(self, points: int) -> Curve:
        """Return the curve with at most this many points: the mean and the extremes of each stretch of rows."""
        if len(self.steps) <= points:
            return self
        parts = np.array_split(np.arange(len(self.steps)), points)
        lower, upper = (self.values if line is None else line for line in (self.low, self.high))
        places = [0, *(part[len(part) // 2] for part in parts[1:-1]), len(self.steps) - 1]
        return Curve(
            self.steps[places],
            np.array([self.values[part].mean() for part in parts]),
            np.array([lower[part].min() for part in parts]),
            np.array([upper[part].max() for part in parts]),
            self.nonfinite,
            rows=len(parts[0]),
        )


def curve_of(columns: Sequence[Column], *, low: Column | None = None, high: Column | None = None) -> Curve:
    """Return the mean over the columns that have a value at a step, with their range if there are several.

    For a single column, `low` and `high` are the range, where they have the same steps.
    """
    nonfinite = np.concatenate([column.steps[~np.isfinite(column.values)] for column in columns])
    marked = _ranges(nonfinite, columns)
    known = [column.finite for column in columns]
    if len(known) == 1:
        return _with_range(known[0], low, high, marked)
    steps = np.unique(np.concatenate([column.steps for column in known]))
    table = np.full((len(known), len(steps)), np.nan)
    for line, column in zip(table, known, strict=True):
        line[np.searchsorted(steps, column.steps)] = column.values
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a sum beyond the range of floats
        mean = np.nanmean(table, axis=0) if len(steps) else np.array([])
    mean = np.where(np.isfinite(mean), mean, np.sign(mean) * np.finfo(np.float64).max)
    return Curve(steps, mean, np.fmin.reduce(table), np.fmax.reduce(table), marked)


def _with_range(column: Column, low: Column | None, high: Column | None, marked: Sequence[tuple[int, int]]) -> Curve:
    if low is not None and high is not None:
        low, high = low.finite, high.finite
        if np.array_equal(low.steps, column.steps) and np.array_equal(high.steps, column.steps):
            return Curve(column.steps, column.values, low.values, high.values, marked)
    return Curve(column.steps, column.values, nonfinite=marked)


def _ranges(steps: NDArray[np.int64], columns: Sequence[Column]) -> list[tuple[int, int]]:
    """Return ranges of steps; two steps are in one range if no step of a column lies between them."""
    every = np.unique(np.concatenate([column.steps for column in columns]))
    places = np.searchsorted(every, np.unique(steps))
    if not len(places):
        return []
    parts = np.split(places, np.flatnonzero(np.diff(places) > 1) + 1)
    ranges = [(int(every[part[0]]), int(every[part[-1]])) for part in parts]
    return (
        [*ranges[: _MAX_RANGES - 1], (ranges[_MAX_RANGES - 1][0], ranges[-1][1])]
        if len(ranges) > _MAX_RANGES
        else ranges
    )
