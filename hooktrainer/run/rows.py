"""The rows of a run directory, read from outside, also while the run writes them."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Self

import attrs
import numpy as np
from numpy.typing import NDArray

from hooktrainer.sinks.stored_rows import parsed

FILE: Final = "metrics.jsonl"
_TAIL: Final = 2**20
"""Bytes at the end of the file that are searched for the last row."""


def read_rows(directory: Path, unreadable: list[int] | None = None) -> Iterator[dict[str, Any]]:
    """Yield the complete rows in the order of the file; NaN and infinities are None.

    The numbers of other lines are appended to `unreadable`. Raises `OSError`.
    """
    with (directory / FILE).open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return  # the run is writing this line, or was killed then
            try:
                yield parsed(line)[0]
            except ValueError:
                if unreadable is not None:
                    unreadable.append(number)


def last_row(directory: Path) -> dict[str, Any] | None:
    """Return the last complete row; None if there is none."""
    try:
        with (directory / FILE).open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL))
            lines = file.read().splitlines(keepends=True)
    except OSError:
        return None
    for line in reversed(lines):
        if line.endswith(b"\n"):
            try:
                return parsed(line)[0]
            except ValueError:
                continue
    return None


@attrs.frozen(eq=False)
class Column:
    """The values of a metric, and the ascending steps whose rows have it."""

    steps: NDArray[np.int64]
    values: NDArray[np.float64]
    """NaN if the row has no finite value."""

    @property
    def finite(self) -> Column:
        """Return the steps with a finite value."""
        known = np.isfinite(self.values)
        return Column(self.steps[known], self.values[known])


@attrs.frozen(kw_only=True)
class StoredMetrics:
    """All rows of a run by metric. Of several rows with one step, the last one is kept."""

    steps: NDArray[np.int64] = attrs.field(factory=lambda: np.array([], np.int64), eq=False)
    columns: Mapping[str, Column] = attrs.field(factory=dict)
    unreadable: tuple[int, ...] = ()
    """Numbers of the lines that are not rows."""

    @classmethod
    def read(cls, directory: Path) -> Self:
        """Read the file of a run directory; a missing one has no rows. Raises `OSError`."""
        unreadable: list[int] = []
        steps = array("q")
        found: dict[str, tuple[array[int], array[float]]] = {}
        try:
            for row in read_rows(directory, unreadable):
                place = len(steps)
                steps.append(row.pop("step"))
                for key, value in row.items():
                    if value is None or isinstance(value, (int, float)):
                        places, values = found.setdefault(key, (array("q"), array("d")))
                        places.append(place)
                        values.append(_number(value))
        except FileNotFoundError:
            pass
        order = _newest(np.array(steps, np.int64))
        columns = {key: _column(order, *column) for key, column in found.items()}
        return cls(steps=order[order > 0], columns=columns, unreadable=tuple(unreadable))


def _number(value: float | None) -> float:
    try:
        return np.nan if value is None else float(value)
    except OverflowError:  # an integer beyond the range of floats
        return np.nan


def _newest(steps: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the step of each row; 0 for rows that a later one with the same step replaces."""
    later = {int(step): place for place, step in enumerate(steps)}
    kept = np.zeros_like(steps)
    for step, place in later.items():
        kept[place] = step
    return kept


def _column(order: NDArray[np.int64], places: array[int], values: array[float]) -> Column:
    steps, numbers = order[np.array(places, np.int64)], np.array(values, np.float64)
    ascending = np.argsort(steps, kind="stable")
    ascending = ascending[steps[ascending] > 0]
    return Column(steps[ascending], numbers[ascending])
