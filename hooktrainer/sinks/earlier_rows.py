"""The rows of earlier starts of a run, read from `metrics.jsonl` for a tracker that cannot delete rows."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from hooktrainer.metrics import STEP_KEY, Row
from hooktrainer.sinks.jsonl import FILE
from hooktrainer.sinks.stored_rows import StoredRow

_LOG: Final = logging.getLogger("hooktrainer")


def earlier_rows(directory: Path, step: int, tracker: str) -> Iterator[tuple[int, Row]]:
    """Yield the rows up to `step` from `metrics.jsonl`, with histograms as `write` gets them.

    Warn if the file does not have all of them.
    """
    found: dict[int, Row] = {}
    try:
        lines = (directory / FILE).read_bytes().splitlines(keepends=True)
    except OSError:
        lines = []
    for line in lines:
        try:
            stored = StoredRow.of(line)
        except ValueError:  # the sink jsonl reports it
            continue
        if stored.step <= step:
            found[stored.step] = _row(json.loads(stored.text))
    if len(found) < step:
        text = "%s starts without %d of the %d rows before the checkpoint: they are not in %s. Add the sink jsonl"
        _LOG.warning(text, tracker, step - len(found), step, directory / FILE)
    for at in sorted(found):
        yield at, {**found[at], STEP_KEY: at}


def _row(stored: Mapping[str, float | None]) -> Row:
    """Return a stored row with NaN for null, and one mapping for the keys `<name>/<value>` of a histogram."""
    values = {key: math.nan if value is None else value for key, value in stored.items() if key != "step"}
    row: dict[str, Any] = {}
    for key, value in values.items():
        if name := _histogram(key):
            row.setdefault(name, {})[float(key.rpartition("/")[2])] = value
        else:
            row[key] = value
    return row


def _histogram(key: str) -> str:
    """Return the name of the histogram that a key of the file belongs to; empty for a scalar."""
    name, _, last = key.rpartition("/")
    try:
        float(last)
    except ValueError:
        return ""
    return name
