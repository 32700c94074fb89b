"""Rows as a file of JSON lines that any strict reader takes."""

from __future__ import annotations

import io
import json
import logging
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import attrs

from hooktrainer._util import files
from hooktrainer.errors import RecordError
from hooktrainer.metrics import Row, number

_LOG: Final = logging.getLogger("hooktrainer")
_TAIL: Final = 2**16
"""Bytes at the end of the file in which the last row is looked for at first."""


@attrs.define
class JsonlSink:
    """Appends one flat JSON object a step to `metrics.jsonl`, with an integer `step`.

    NaN and infinities, which JSON does not have, become null. A histogram becomes one key a value, `key/<value>`.
    """

    directory: Path = attrs.field(converter=Path)
    total_steps: int | None = None
    """Not used; all sinks are made the same way."""
    _open: bool = attrs.field(default=False, init=False, repr=False)
    _was_there: bool = attrs.field(default=False, init=False, repr=False)
    _begun: int | None = attrs.field(default=None, init=False)
    """The step that was handed over last; whether its row is in the file, only the file knows."""
    _written: int = attrs.field(default=-1, init=False)
    """The step whose row is in the file for certain, unless somebody else writes to it."""
    _warned: set[str] = attrs.field(factory=set, init=False, repr=False)

    @property
    def path(self) -> Path:
        """Where the rows are."""
        return self.directory / "metrics.jsonl"

    def open(self) -> None:
        """Create the directory and the file; rows of an earlier run in it are kept and must be older.

        Raises `RecordError` if rows cannot be written there.
        """
        self._was_there = self.path.exists()
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab"):
                pass
            files.sync(self.directory)
        except OSError as error:
            raise RecordError(f"rows cannot be written to {self.path}: {error}. Move away what is there") from None
        self._open, self._begun = True, None

    def write(self, step: int, row: Row) -> None:
        """Append a row; it is on the disk when this returns. Raises `RecordError` unless steps ascend.

        A step that is handed over once more, as after an interrupt in the middle of this, is written once.
        """
        if not self._open:
            raise RecordError(f"step {step} was written to {self.path}, but the sink is not open")
        try:
            self._write(step, row)
        except OSError as error:
            raise RecordError(
                f"the row of step {step} cannot be written to {self.path}: {error}. Make room, or bring the directory "
                "back, and go on from the last checkpoint with run.resume=auto"
            ) from None

    def _write(self, step: int, row: Row) -> None:
        last = self._last_step()  # not kept: whoever resumes a run may cut the file, and an interrupt may come anywhere
        if step == last == self._begun:
            return
        if step <= last:
            raise RecordError(f"step {step} follows step {last} in {self.path}; steps must ascend")
        if self._written > last:
            _LOG.warning("%s: somebody took away rows, up to that of step %d", self.path, self._written)
        line = json.dumps({"step": step} | self._finite(row) | {"step": step}, allow_nan=False)
        whole = self.path.stat().st_size if self.path.exists() else 0
        self._begun = step
        try:
            with self.path.open("ab") as file:  # no handle is kept, so there is none to lose
                file.write(f"{line}\n".encode())
                file.flush()
                os.fsync(file.fileno())
        except BaseException:
            with suppress(OSError):  # the first error says more
                os.truncate(self.path, whole)  # a full disk takes half a line, and so may an interrupt
            raise
        self._written = step

    def rewind(self, step: int) -> Sequence[int]:
        """Cut off all rows after `step`; returns their steps. Says which rows up to it are missing.

        Raises `RecordError` with the line if one up to `step` cannot be read; one after it is cut off, too.
        """
        kept, taken, unreadable, size = list[int](), list[int](), list[int](), 0
        for place, line in enumerate(io.BytesIO(self._read()), start=1):
            if not line.endswith(b"\n"):
                break  # a row that a kill tore was never confirmed
            try:
                found = _step_of(line)
            except ValueError as error:
                if (kept[-1] if kept else 0) < step:
                    raise self._damage(place, error) from None
                unreadable.append(place)
                continue
            if found > step:
                taken.append(found)
            elif taken or unreadable:
                raise self._damage(place, ValueError(f"step {found} stands behind what came later"))
            else:
                kept.append(found)
                size += len(line)
        os.truncate(self.path, size)
        self._written = -1
        self._say(step, kept, unreadable)
        return taken

    def close(self) -> None:
        """Take no more rows."""
        self._open = False

    def _say(self, step: int, kept: Sequence[int], unreadable: Sequence[int]) -> None:
        if unreadable:
            numbers = ", ".join(map(str, unreadable))
            _LOG.warning("%s: what cannot be read after step %d is cut off: line %s", self.path, step, numbers)
        first = kept[0] if kept else 1  # a run may have begun in another directory
        expected = range(first, step + 1) if kept or self._was_there else ()
        if missing := sorted(set(expected) - set(kept)):
            rows = f"rows {_ranges(missing)} are" if len(missing) > 1 else f"row {missing[0]} is"
            _LOG.warning("%s: %s missing, and the run goes on after step %d without them", self.path, rows, step)

    def _last_step(self) -> int:
        """The step of the last row, -1 if there is none; a line that a crash tore was never confirmed and is cut."""
        if not self.path.exists():
            return -1
        with self.path.open("rb+") as file:
            size, tail = file.seek(0, os.SEEK_END), b""
            while len(tail) < size and tail.count(b"\n") < 2:
                start = max(0, size - max(_TAIL, 4 * len(tail)))
                file.seek(start)
                tail = file.read(size - start)
            whole = tail.rfind(b"\n") + 1
            if whole < len(tail):
                file.truncate(size - len(tail) + whole)
        lines = tail[:whole].split(b"\n")
        try:
            return _step_of(lines[-2]) if len(lines) > 1 else -1
        except ValueError as error:
            raise self._damage(self._read().count(b"\n"), error) from None

    def _read(self) -> bytes:
        try:
            return self.path.read_bytes()
        except OSError as error:
            raise RecordError(f"the rows in {self.path} cannot be read: {error}") from None

    def _damage(self, line: int, error: Exception) -> RecordError:
        return RecordError(
            f"{self.path}, line {line}, is no row: {error}. Mend or remove that line, or move the file away"
        )

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


def _step_of(line: bytes) -> int:
    """The step of a row. Raises `ValueError` if it is none."""
    try:
        step = json.loads(line)["step"]
    except (LookupError, TypeError, RecursionError) as error:
        raise ValueError(f"it has no step ({error!r})") from error
    if type(step) is not int:
        raise ValueError(f"its step is {step!r}")
    return step


def _ranges(steps: Sequence[int]) -> str:
    """Ascending steps, runs of them in short: 1, 3-8."""
    known = set(steps)
    starts = [step for step in steps if step - 1 not in known]
    ends = [step for step in steps if step + 1 not in known]
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in zip(starts, ends, strict=True))
