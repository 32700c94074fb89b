"""Rows as a file of JSON lines that any strict reader takes."""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import attrs

from hooktrainer.errors import RecordError
from hooktrainer.metrics import number
from hooktrainer.record import Row

_LOG: Final = logging.getLogger("hooktrainer")


@attrs.define
class JsonlSink:
    """Appends one flat JSON object a step to `metrics.jsonl`, with an integer `step`.

    NaN and infinities, which JSON does not have, become null. A histogram becomes one key a value, `key/<value>`.
    """

    directory: Path = attrs.field(converter=Path)
    total_steps: int | None = None
    """Not used; all sinks are made the same way."""
    _open: bool = attrs.field(default=False, init=False, repr=False)
    _last_step: int | None = attrs.field(default=None, init=False)
    _warned: set[str] = attrs.field(factory=set, init=False, repr=False)

    @property
    def path(self) -> Path:
        """Where the rows are."""
        return self.directory / "metrics.jsonl"

    def open(self) -> None:
        """Create the directory and the file; rows of an earlier run in it are kept and must be older."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self.path.touch()
        self._open, self._last_step = True, None

    def write(self, step: int, row: Row) -> None:
        """Append a row; it is in the file when this returns. Raises `RecordError` unless steps ascend."""
        if not self._open:
            raise RecordError(f"step {step} was written to {self.path}, but the sink is not open")
        if self._last_step is None:  # not in open(): whoever resumes a run may cut the file after that
            self._last_step = _last_step(self.path)
        if step <= self._last_step:
            raise RecordError(f"step {step} follows step {self._last_step} in {self.path}; steps must ascend")
        line = json.dumps({"step": step} | self._finite(row) | {"step": step}, allow_nan=False)
        whole = self.path.stat().st_size if self.path.exists() else 0
        try:
            with self.path.open("a", encoding="utf-8") as file:  # no handle is kept, so there is none to lose
                file.write(line + "\n")
        except OSError:
            os.truncate(self.path, whole)  # a full disk takes half a line
            raise
        self._last_step = step

    def rewind(self, step: int) -> Sequence[int]:
        """Cut off all rows after `step`; returns their steps."""
        rows = self.path.read_bytes().splitlines(keepends=True)
        whole = [row for row in rows if row.endswith(b"\n")]
        steps = [int(json.loads(row)["step"]) for row in whole]
        kept = sum(kept <= step for kept in steps)
        os.truncate(self.path, sum(map(len, whole[:kept])))
        self._last_step = None
        return steps[kept:]

    def close(self) -> None:
        """Take no more rows."""
        self._open = False

    def _finite(self, row: Row) -> dict[str, float | None]:
        flat = dict(_flatten(row))
        lost = [key for key, value in flat.items() if not math.isfinite(value)]
        if new := sorted(set(lost) - self._warned):
            self._warned.update(new)
            _LOG.warning("%s: NaN or infinite, written as null from now on: %s", self.path.name, ", ".join(new))
        return flat | dict.fromkeys(lost)


def _flatten(row: Mapping[str, object]) -> Iterator[tuple[str, float]]:
    for key, value in row.items():
        if isinstance(value, Mapping):
            yield from ((f"{key}/{_short(number(seen, key))}", number(count, key)) for seen, count in value.items())
        else:
            yield key, number(value, key)


def _short(value: float) -> str:
    """The shortest text that reads back as the same number."""
    return repr(value).removesuffix(".0")


def _last_step(path: Path) -> int:
    """The step of the last row, -1 if there is none; a line that a crash tore was never confirmed and is cut off."""
    with path.open("rb+") as file:
        rows = file.read()
        whole = rows.rfind(b"\n") + 1
        file.truncate(whole)
    lines = rows[:whole].splitlines()
    return int(json.loads(lines[-1])["step"]) if lines else -1
