"""The rows of a data file, checked and divided into training and held-out rows."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import xxhash
from numpy.typing import NDArray

from hooktrainer.errors import ConfigError, shortened
from hooktrainer.ports import Messages
from hooktrainer.tasks.files import Rows, open_rows
from hooktrainer.tasks.files.columns import MISSING, missing_column, value_at

_LONGEST = 80


@attrs.frozen(eq=False)
class Split:
    """The rows of a task, and the numbers of those for training and for validation."""

    rows: Rows
    training: NDArray[np.int64]
    heldout_rows: Rows
    heldout: NDArray[np.int64]
    """The same rows in the same order for every seed."""

    @classmethod
    def of(cls, path: Path, *, prompt: str, truth: str | None, heldout: float, heldout_path: Path | None) -> Split:
        """Read the files. Raises `ConfigError` with the place of the first row that cannot be used."""
        rows = open_rows(path)
        hashes = _checked_hashes(rows, prompt, truth)
        everything = np.arange(len(rows))
        if heldout_path is not None:
            others = open_rows(heldout_path)
            _checked_hashes(others, prompt, truth)
            return cls(rows, everything, others, np.random.default_rng(0).permutation(len(others)))
        count = heldout if isinstance(heldout, int) else max(1, round(heldout * len(rows))) if heldout else 0
        distinct, first = np.unique(hashes, return_index=True)
        if count >= len(distinct):
            text = f"{path} has {len(distinct)} different prompts, and heldout takes {count} of them"
            raise ConfigError(f"{text}, so that none is left for training. Lower it, or set heldout_path")
        return cls(rows, everything[~np.isin(hashes, distinct[:count])], rows, first[:count].astype(np.int64))


def prompt_of(row: Mapping[str, Any], column: str) -> str | Messages | None:
    """Return the prompt of a row: a text, or messages without empty keys; None if it is neither."""
    found = value_at(row, column)
    if isinstance(found, str):
        return found or None
    if not isinstance(found, list) or not found:
        return None
    if not all(isinstance(one, Mapping) and one.get("role") and one.get("content") is not None for one in found):
        return None
    return [{key: value for key, value in message.items() if value is not None} for message in found]


def _checked_hashes(rows: Rows, prompt: str, truth: str | None) -> NDArray[np.uint64]:
    """Return a hash of the prompt of each row. Raises `ConfigError` for a row without a prompt or a truth."""
    columns = {name for column in (prompt, truth) if column for name in (column, column.partition(".")[0])}
    hashes = np.empty(len(rows), dtype=np.uint64)
    for number, row in enumerate(rows.select(columns)):
        found = prompt_of(row, prompt)
        if found is None:
            raise ConfigError(f"{rows.place(number)}, column '{prompt}': {_fault_of_prompt(row, prompt)}")
        if truth is not None and (text := _fault_of_truth(row, truth)):
            remedy = "Set `truth: null` if no reward reads the truth"
            raise ConfigError(f"{rows.place(number)}, column '{truth}': {text}. {remedy}".replace("..", "."))
        text = found if isinstance(found, str) else json.dumps(found, sort_keys=True)
        hashes[number] = xxhash.xxh3_64_intdigest(text.encode(errors="surrogatepass"))
    return hashes


def _fault_of_truth(row: Mapping[str, Any], column: str) -> str:
    """Return why the truth of a row cannot be compared with an answer; an empty string if it can."""
    found = value_at(row, column)
    if found is MISSING:
        return missing_column(row, column)
    if found is None:
        return "the truth is empty"
    verb = "is" if isinstance(found, float) else "contains"
    return f"the truth {verb} NaN, which equals no answer" if _has_nan(found) else ""


def _has_nan(value: Any) -> bool:
    if isinstance(value, (list, Mapping)):
        return any(map(_has_nan, value.values() if isinstance(value, Mapping) else value))
    return isinstance(value, float) and math.isnan(value)


def _fault_of_prompt(row: Mapping[str, Any], column: str) -> str:
    found = value_at(row, column)
    if found is MISSING:
        return missing_column(row, column)
    expected = "expected a text, or a list of messages with 'role' and 'content'"
    return f"{expected}, found {shortened(repr(found), _LONGEST)} ({type(found).__name__})"
