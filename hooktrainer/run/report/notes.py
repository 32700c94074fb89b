"""Warnings about a run: how it ended, rows that are missing, values that are not finite, and data that was lost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from hooktrainer.run.history import RunHistory
from hooktrainer.sinks.stored_rows import ranges

_MOST: Final = 8
"""Metrics that are listed by name."""
_LOSSES: Final = {
    "replay/evicted_capacity": "groups evicted, because the replay buffer was full",
    "replay/dropped_repeatedly": "groups dropped more than once",
    "training/off_policy/evicted_samples": "groups dropped as too stale",
    "actor/skipped_updates": "updates skipped",
    "actor/rollbacks": "updates undone",
    "rollout/restarts": "workers restarted",
    "training/unscored": "answers without a score",
}
"""Counts of a step that are 0 in a run without trouble."""
_FAILED: Final = "replay/failed/"
"""Prefix of the running totals of failed groups, by reason."""
_CUT: Final = 0.5
"""Share of answers cut at the longest length, above which there is a warning."""


def notes_on(run: RunHistory) -> Iterator[str]:
    """Yield the warnings of a run, each a sentence."""
    yield from _ending(run)
    yield from run.faults
    yield from _rows(run)
    yield from _values(run)
    yield from _counts(run)


def _ending(run: RunHistory) -> Iterator[str]:
    match run.state:
        case "killed":
            yield "the process of the run is gone, and its end is not recorded: it was killed"
        case "unknown" if run.record:
            yield f"the run was started on {run.record.starts[-1].host}, and its end is not recorded"
    killed = sum(start.end is None for start in run.record.starts[:-1]) if run.record else 0
    if killed:
        yield f"earlier starts of the run were killed: {killed}"


def _rows(run: RunHistory) -> Iterator[str]:
    steps = run.metrics.steps
    if not len(steps):
        yield "the run has no row: either no step is complete, or log_after_collect does not have the sink jsonl"
        return
    missing = np.setdiff1d(np.arange(steps.min(), steps.max() + 1), steps)
    if len(missing):
        yield f"rows are missing: {_some(ranges(missing.tolist()))}"


def _values(run: RunHistory) -> Iterator[str]:
    columns = run.metrics.columns
    bad = {key: column.steps[~np.isfinite(column.values)].tolist() for key, column in columns.items()}
    found = {key: steps for key, steps in bad.items() if steps}
    for key, steps in list(found.items())[:_MOST]:
        yield f"{key} is NaN or infinite at steps {_some(ranges(steps))}"
    if len(found) > _MOST:
        yield f"{len(found) - _MOST} more metrics have values that are NaN or infinite"
    for key, column in columns.items():
        if key.startswith("nan/") and (count := np.nansum(column.values)):
            yield f"NaNs left out of {key.removeprefix('nan/')}: {count:.0f}"


def _counts(run: RunHistory) -> Iterator[str]:
    columns = run.metrics.columns
    for key, text in _LOSSES.items():
        if key in columns and (count := np.nansum(columns[key].values)) > 0:
            yield f"{text}: {count:.0f} ({key})"
    for key, column in columns.items():
        if key.startswith(_FAILED) and (count := np.nanmax(column.values, initial=0)) > 0:
            yield f"groups failed: {count:.0f} ({key})"
    if "ledger/imbalance" in columns and (off := columns["ledger/imbalance"].finite.values).any():
        yield f"the ledger does not add up: ledger/imbalance is {off[off != 0][-1]:g}"
    cut = columns.get("response_length/clip_ratio")
    if cut is not None and len(shares := cut.finite.values) and shares[-1] > _CUT:
        yield f"{shares[-1]:.0%} of the answers of the last step were cut at rollout.max_response_length"


def _some(text: str) -> str:
    parts = text.split(", ")
    return ", ".join(parts[:_MOST]) + (", …" if len(parts) > _MOST else "")
