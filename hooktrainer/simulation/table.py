"""Rows of a sweep as an aligned table and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import attrs

from hooktrainer.simulation.outcome import Outcome
from hooktrainer.simulation.sweep import Row

_COLUMNS: Final[Mapping[str, Callable[[Outcome], str]]] = {
    "S mean": lambda outcome: f"{outcome.staleness_mean:.2f}",
    "p99": lambda outcome: str(outcome.staleness_p99),
    "max": lambda outcome: str(outcome.staleness_max),
    "age": lambda outcome: f"{outcome.age_mean:.2f}",
    "dropped": lambda outcome: f"{outcome.drop_rate:.1%}",
    "wasted": lambda outcome: f"{outcome.wasted:.1%}",
    "length bias": lambda outcome: "-" if outcome.length_bias is None else f"{outcome.length_bias:.2f}",
    "learner idle": lambda outcome: f"{outcome.learner_idle:.0%}",
    "engine idle": lambda outcome: f"{outcome.engine_idle:.0%}",
    "s/step": lambda outcome: f"{outcome.seconds_per_step:.3g}",
    "limit": lambda outcome: f"{outcome.overlap_limit:.3g}",
    "of limit": lambda outcome: f"{outcome.of_limit:.0%}",
}
_SETTING: Final = ("T", "workers", "at once")
LEGEND: Final = """\
T: max_off_policy_threshold of the staleness plugin. workers: rollout workers; at once: groups that they generate at the
same time. S: staleness of trained groups, 1 is fresh; S mean, p99, max: its mean, 99th percentile and maximum; age: S
mean - 1. dropped: share of groups that were not trained; wasted: their share of the generation time. length bias: mean
length of trained over generated groups, 1 is unbiased. learner idle: share of the time in which the learner waited;
engine idle: mean share of free slots of the engine. s/step: seconds per step; limit: seconds per step if the slower of
engine and learner never waited (their sum if they do not overlap); of limit: limit over s/step."""


def as_text(rows: Iterable[Row]) -> str:
    """Format a table; a setting that could not run has a reason instead of numbers."""
    titles = [*_SETTING, *_COLUMNS]
    found = list(rows)
    table = [titles, *map(_cells, found)]
    widths = [max(len(cells[place]) for cells in table if place < len(cells)) for place in range(len(titles))]
    reasons = ["", *(" ".join(row.reason.split()) for row in found)]
    lines = [_line([*cells, reason], [*widths[: len(cells)], 0]) for cells, reason in zip(table, reasons, strict=True)]
    return "".join(f"{line}\n" for line in lines)


def as_json(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """Return one flat object per row; a setting that could not run has only a `reason`, which is null otherwise."""
    return [
        {
            "threshold": row.threshold,
            "workers": row.workers,
            "groups_at_once": row.groups_at_once,
            "reason": row.reason or None,
            **(attrs.asdict(row.outcome) if row.outcome else {}),
        }
        for row in rows
    ]


def _cells(row: Row) -> list[str]:
    threshold = "-" if row.threshold is None else str(row.threshold)
    numbers = [show(row.outcome) for show in _COLUMNS.values()] if row.outcome else []
    return [threshold, str(row.workers), str(row.groups_at_once), *numbers]


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()
