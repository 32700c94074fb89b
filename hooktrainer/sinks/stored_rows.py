"""The rows that a JSON Lines file holds, also after a crash, an edit or a copy changed it."""

from __future__ import annotations

import codecs
import json
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import attrs


@attrs.frozen
class StoredRow:
    """A line of the file."""

    step: int
    text: bytes
    """The line as strict JSON, with its line feed."""
    strict: bool = True
    """False if the line in the file has NaN or infinities, which are not valid JSON."""
    marked: bool = False
    """Whether the line in the file starts with a byte order mark."""

    @classmethod
    def of(cls, line: bytes) -> StoredRow:
        """Parse a line. Raises `ValueError` if it is not a row."""
        row, strict = parsed(line)
        marked = line.startswith(codecs.BOM_UTF8)
        text = line.removeprefix(codecs.BOM_UTF8) if strict else f"{json.dumps(row)}\n".encode()
        return cls(row["step"], text, strict=strict, marked=marked)


def parsed(line: bytes) -> tuple[dict[str, Any], bool]:
    """Return the row of a line, with None for NaN and infinities, and whether there were none of these.

    Raises `ValueError` if the line is not a row.
    """
    constants: list[str] = []
    try:
        row = json.loads(line.removeprefix(codecs.BOM_UTF8), parse_constant=constants.append)
        step = row["step"]
    except (LookupError, TypeError, RecursionError) as error:
        raise ValueError(f"it has no step ({error!r})") from error
    if type(step) is not int or step < 1:
        raise ValueError(f"its step is {constants[0] if step is None and constants else step!r}")
    return row, not constants


@attrs.define
class StoredRows:
    """The rows of a file in the order of the file, and the numbers of the lines that are not rows."""

    rows: list[StoredRow] = attrs.field(factory=list)
    unreadable: list[int] = attrs.field(factory=list)

    def repairs(self, step: int) -> str:
        """Return what has to be changed in the rows up to `step`; an empty string if nothing."""
        steps = [row.step for row in self.rows]
        repeated = {at for at, count in Counter(steps).items() if count > 1 and at <= step}
        late = {b for a, b in pairwise(steps) if b < a and b <= step}
        marked = {row.step for row in self.rows if row.step <= step and row.marked}
        nonfinite = {row.step for row in self.rows if row.step <= step and not row.strict}
        found = {
            "occurred more than once, and the last one is kept": repeated,
            "followed a later step and was moved": late,
            "had a byte order mark, which was removed": marked,
            "had NaN or infinite values, which are null now": nonfinite,
        }
        return ", ".join(
            f"{'row' if len(steps) == 1 else 'rows'} {ranges(steps)} {what}" for what, steps in found.items() if steps
        )


def ranges(steps: Iterable[int]) -> str:
    """Format steps with ranges: 1, 3-8."""
    known = set(steps)
    starts = sorted(step for step in known if step - 1 not in known)
    ends = sorted(step for step in known if step + 1 not in known)
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in zip(starts, ends, strict=True))
