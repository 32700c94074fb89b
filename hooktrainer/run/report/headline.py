"""The figures of a run that are read first: how long it took, and its best and last score."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np

from hooktrainer.run.history import RunHistory
from hooktrainer.run.report.groups import SCORES
from hooktrainer.run.rows import Column


@attrs.frozen(kw_only=True)
class Headline:
    """Figures of a run."""

    steps: int
    """The last step with a row."""
    total_steps: int | None
    seconds: float
    metric: str
    """The score that the run is judged by; empty if no row has one."""
    first: float | None = None
    best: float | None = None
    best_step: int | None = None
    last: float | None = None

    @property
    def length(self) -> str:
        """The number of steps, and how many there are to be."""
        return f"{self.steps} of {self.total_steps}" if self.total_steps is not None else str(self.steps)

    @property
    def duration(self) -> str:
        """The time of all starts."""
        return duration(self.seconds)


def headline_of(run: RunHistory) -> Headline:
    """Return the figures of a run."""
    end = run.record.starts[-1].end if run.record else None
    known = int(run.metrics.steps.max(initial=0))
    steps = max(known, int(end["step"])) if end else known
    total = run.record.total_steps if run.record else None
    metric, column = score_of(run)
    figures = Headline(steps=steps, total_steps=total, seconds=run.seconds, metric=metric)
    if column is None:
        return figures
    best = int(column.values.argmax())
    return attrs.evolve(
        figures,
        first=float(column.values[0]),
        best=float(column.values[best]),
        best_step=int(column.steps[best]),
        last=float(column.values[-1]),
    )


def score_of(run: RunHistory, metrics: Sequence[str] = SCORES) -> tuple[str, Column | None]:
    """Return the first of the metrics that has a finite value, and its finite values."""
    for metric in metrics:
        if metric in run.metrics.columns and len((column := run.metrics.columns[metric].finite).steps):
            return metric, column
    return "", None


def mean_of(run: RunHistory, metric: str) -> float | None:
    """Return the mean of a metric over the steps; None if no row has it."""
    column = run.metrics.columns.get(metric)
    values = column.finite.values if column is not None else np.array([])
    return float(values.mean()) if len(values) else None


def duration(seconds: float) -> str:
    """Format seconds: 12.3 s, 4 min 5 s, 6 h 7 min, 8 d 9 h."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
