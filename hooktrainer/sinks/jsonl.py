"""The JSON Lines sink: one strict JSON object per step."""

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
from hooktrainer.events import Status
from hooktrainer.metrics import STEP_KEY, Row, number
from hooktrainer.ports import RunInfo
from hooktrainer.sinks.appending import append, set_aside
from hooktrainer.sinks.stored_rows import StoredRow, StoredRows, ranges

_LOG: Final = logging.getLogger("hooktrainer")
FILE: Final = "metrics.jsonl"
"""Name of the file in the run directory."""
_FIRST_STEP: Final = ".first_step"
"""Name of the file with the first step of a directory whose run started from the checkpoint of another one."""
_TAIL: Final = 2**16
"""Bytes read from the end of the file to find the last row; more are read if a row is longer."""


@attrs.define
class JsonlSink:
    """Appends one flat JSON object per step to `metrics.jsonl`, with an integer `step`.

    NaN and infinities become null, since JSON has neither. A histogram becomes one key per value, `key/<value>`.
    """

    critical: bool = True
    """Whether an error ends the run. If not, the sink is dropped with a warning."""
    _directory: Path | None = attrs.field(default=None, init=False)
    _open: bool = attrs.field(default=False, init=False, repr=False)
    _existed: bool = attrs.field(default=False, init=False, repr=False)
    _last_attempt: int | None = attrs.field(default=None, init=False)
    """The step of the last call of `write`, which may have been interrupted."""
    _written: int = attrs.field(default=-1, init=False)
    """The step of the last row that was written completely."""
    _state: tuple[int, int, int] | None = attrs.field(default=None, init=False, repr=False)
    """The state of the file after that row. While it lasts, the file need not be read."""
    _warned: set[str] = attrs.field(factory=set, init=False, repr=False)

    @property
    def directory(self) -> Path:
        """Return the run directory. Raises `RecordError` before `open`."""
        if self._directory is None:
            raise RecordError("the sink jsonl is not open, so it has no file")
        return self._directory

    @property
    def path(self) -> Path:
        """Return the path of the file. Raises `RecordError` before `open`."""
        return self.directory / FILE

    @property
    def last_step(self) -> int:
        """Return the last step that has a row; 0 if there is none."""
        return max((row.step for row in self._parsed(self._read(), 0).rows), default=0)

    def open(self, run: RunInfo) -> None:
        """Create the run directory and the file. Existing rows are kept; new rows must have later steps.

        Raises `RecordError` if rows cannot be written.
        """
        self._directory = run.directory
        self._existed = self.path.exists()
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab"):
                pass
            files.sync(self.directory)
        except OSError as error:
            raise RecordError(f"rows cannot be written to {self.path}: {error}. Move or remove that path") from None
        self._open, self._last_attempt, self._state = True, None, None

    def write(self, step: int, row: Row) -> None:
        """Append a row and sync it to disk. Raises `RecordError` unless steps ascend.

        A repeated call with the same step, as after an interrupt, writes the row once.
        """
        if not self._open:
            raise RecordError(f"step {step} was written to the sink jsonl, but the sink is not open")
        try:
            self._write(step, row)
        except OSError as error:
            raise RecordError(
                f"the row of step {step} cannot be written to {self.path}: {error}. Free some space, or restore the "
                "directory, and resume from the last checkpoint with run.resume=auto"
            ) from None

    def _write(self, step: int, row: Row) -> None:
        unchanged = self._state is not None and self._state == _state_of(self.path)
        last = self._written if unchanged else self._last_step()  # another process may have changed the file
        if step == last == self._last_attempt:
            return
        if step <= last:
            raise RecordError(f"step {step} follows step {last} in {self.path}; steps must ascend")
        if self._written > last:
            _LOG.warning("%s: rows up to step %d were removed by another process", self.path, self._written)
        steps = {"step": step} | ({STEP_KEY: step} if STEP_KEY in row else {})  # integers, unlike metrics
        line = json.dumps({"step": step} | self._finite(row) | steps, allow_nan=False)
        self._last_attempt = step
        append(self.path, f"{line}\n".encode())
        self._written = step  # before the state, so that an interrupt between them leads to a read
        self._state = _state_of(self.path)

    def rewind(self, step: int) -> Sequence[int]:
        """Delete all rows after `step` and return their steps. Afterwards steps ascend and are unique.

        Log which rows up to `step` are missing, and what had to be repaired; the file as it was is kept under another
        name then. Raises `RecordError` with the line number if a row up to `step` cannot be read.
        """
        try:
            return self._rewind(step)
        except OSError as error:
            text = f"the rows after step {step} cannot be removed from {self.path}: {error}. Free some space, or make"
            raise RecordError(f"{text} the file writable") from None

    def _rewind(self, step: int) -> Sequence[int]:
        data = self._read()
        found = self._parsed(data, step)
        rows = {row.step: row for row in found.rows if row.step <= step}  # the last one of a step is the newest
        kept = sorted(rows)
        fresh = b"".join(rows[at].text for at in kept)
        repairs = found.repairs(step)
        aside = set_aside(self.path, data) if repairs or found.unreadable else self.path
        if repairs:
            files.replace(self.path, fresh)
            _LOG.warning("%s was repaired: %s; the earlier file is kept as %s", self.path, repairs, aside.name)
        elif len(fresh) < len(data):
            os.truncate(self.path, len(fresh))
        self._written, self._state = -1, None
        if found.unreadable:
            numbers = ", ".join(map(str, found.unreadable))
            text = "%s: unreadable rows after step %d were deleted: line %s; the earlier file is kept as %s"
            _LOG.warning(text, self.path, step, numbers, aside.name)
        self._log_gaps(step, kept)
        return sorted({row.step for row in found.rows} - rows.keys())

    def close(self, status: Status) -> None:  # noqa: ARG002 (`run.json` has it)
        """Accept no more rows."""
        self._open = False

    def _parsed(self, data: bytes, step: int) -> StoredRows:
        """Parse all rows. Raises `RecordError` for an unreadable one, unless all rows up to `step` precede it."""
        found = StoredRows()
        for place, line in enumerate(io.BytesIO(data), start=1):
            if not line.endswith(b"\n"):
                break  # a row that a kill tore was never confirmed
            try:
                found.rows.append(StoredRow.of(line))
            except ValueError as error:
                if max((row.step for row in found.rows), default=0) < step:
                    raise self._damage(place, error) from None
                found.unreadable.append(place)
        return found

    def _log_gaps(self, step: int, kept: Sequence[int]) -> None:
        if missing := sorted(set(range(self._first_step(step), step + 1)) - set(kept)):
            rows = f"rows {ranges(missing)} are" if len(missing) > 1 else f"row {missing[0]} is"
            _LOG.warning("%s: %s missing; the run resumes from step %d without them", self.path, rows, step)

    def _first_step(self, step: int) -> int:
        """Return the step of the first row of this directory, also if that row is missing.

        It is 1, unless the run started here from the checkpoint of another directory, which is recorded in a file.
        """
        record = self.directory / _FIRST_STEP
        if not self._existed and not any(self.directory.glob("checkpoints/step_*")):
            with suppress(OSError):  # the next resume logs rows that are in the other directory
                files.replace(record, f"{step + 1}".encode())
            return step + 1
        try:
            return int(record.read_text(encoding="ascii"))
        except (OSError, ValueError):
            return 1

    def _last_step(self) -> int:
        """Return the step of the last row, -1 if there is none. Delete an incomplete last line, left by a crash."""
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
            return StoredRow.of(lines[-2]).step if len(lines) > 1 else -1
        except ValueError as error:
            raise self._damage(self._read().count(b"\n"), error) from None

    def _read(self) -> bytes:
        try:
            return self.path.read_bytes()
        except OSError as error:
            raise RecordError(f"the rows in {self.path} cannot be read: {error}") from None

    def _damage(self, line: int, error: Exception) -> RecordError:
        return RecordError(
            f"{self.path}, line {line}, is not a row: {error}. Repair or remove that line, or move the file"
        )

    def _finite(self, row: Row) -> dict[str, float | None]:
        flat = dict(_flatten(row))
        nonfinite = [key for key, value in flat.items() if not math.isfinite(value)]
        if new := sorted(set(nonfinite) - self._warned):
            self._warned.update(new)
            _LOG.warning("%s: NaN and infinite values are written as null: %s", self.path.name, ", ".join(new))
        return flat | dict.fromkeys(nonfinite)


def _state_of(path: Path) -> tuple[int, int, int] | None:
    """Return inode, size and time of change of a file; None if it is missing."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _flatten(row: Mapping[str, object]) -> Iterator[tuple[str, float]]:
    for key, value in row.items():
        if isinstance(value, Mapping):
            yield from ((f"{key}/{_short(number(seen, key))}", number(count, key)) for seen, count in value.items())
        else:
            yield key, number(value, key)


def _short(value: float) -> str:
    """Return the shortest text that parses as the same number."""
    return repr(value).removesuffix(".0")
