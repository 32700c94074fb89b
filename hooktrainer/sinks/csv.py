"""The CSV sink: a table with one line per step and one column per metric."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import attrs

from hooktrainer._util import files
from hooktrainer.errors import RecordError
from hooktrainer.events import Status
from hooktrainer.metrics import Row, number
from hooktrainer.ports import RunInfo
from hooktrainer.sinks.appending import append

_STEP: Final = "step"


@attrs.define
class CsvSink:
    """Appends one line per step to `metrics.csv`, for spreadsheets and pandas. Histograms are left out.

    A metric that appears later adds a column, which is empty in the earlier lines.
    """

    critical: bool = False
    """Whether an error ends the run. If not, the sink is dropped with a warning."""
    _path: Path | None = attrs.field(default=None, init=False)
    _columns: list[str] = attrs.field(factory=list, init=False, repr=False)
    """Columns of the file; empty before `open` and after `close`."""
    _last_step: int = attrs.field(default=0, init=False, repr=False)

    @property
    def path(self) -> Path:
        """Return the path of the file. Raises `RecordError` before `open`."""
        if self._path is None:
            raise RecordError("the sink csv is not open, so it has no file")
        return self._path

    @property
    def last_step(self) -> int:
        """Return the last step that has a line; 0 if there is none."""
        return max(map(_step, self._read()[1]), default=0)

    def open(self, run: RunInfo) -> None:
        """Create the run directory and the file. Existing lines are kept, except for one that a kill left incomplete.

        Raises `RecordError` if lines cannot be written.
        """
        self._path = run.directory / "metrics.csv"
        try:
            run.directory.mkdir(parents=True, exist_ok=True)
            columns, lines = self._read()
            self._replace(columns, lines)
        except OSError as error:
            raise RecordError(f"rows cannot be written to {self.path}: {error}. Move or remove that path") from None

    def write(self, step: int, row: Row) -> None:
        """Append a line and sync it to disk. A repeated call with the last step, as after an interrupt, does nothing.

        Raises `RecordError` unless steps ascend.
        """
        if not self._columns:
            raise RecordError(f"step {step} was written to the sink csv, which is not open")
        if step == self._last_step:
            return
        if step < self._last_step:
            raise RecordError(f"step {step} follows step {self._last_step} in {self.path}; steps must ascend")
        values = {key: number(value, key) for key, value in row.items() if not isinstance(value, Mapping)}
        line = {_STEP: str(step), **{key: repr(value) for key, value in values.items() if key != _STEP}}
        try:
            self._append(line)
        except OSError as error:
            text = f"the row of step {step} cannot be written to {self.path}: {error}. Free some space"
            raise RecordError(f"{text}, and resume from the last checkpoint with run.resume=auto") from None

    def rewind(self, step: int) -> Sequence[int]:
        """Delete all lines after `step` and return their steps."""
        columns, lines = self._read()
        kept = [line for line in lines if _step(line) <= step]
        if len(kept) < len(lines):
            self._replace(columns, kept)
        return sorted({_step(line) for line in lines} - set(map(_step, kept)))

    def close(self, status: Status) -> None:  # noqa: ARG002 (a table has no place for it)
        """Accept no more lines."""
        self._columns = []

    def _append(self, line: Mapping[str, str]) -> None:
        if new := [key for key in line if key not in self._columns]:
            columns, lines = self._read()
            earlier = [
                other for other in lines if _step(other) < _step(line)
            ]  # an interrupted call may have written it
            self._replace([*columns, *new], [*earlier, line])
            return
        before = self._last_step
        self._last_step = _step(line)  # set before writing: an interrupted line must not be written twice
        try:
            append(self.path, _text([[line.get(key, "") for key in self._columns]]))
        except BaseException:
            self._last_step = before
            raise

    def _replace(self, columns: Sequence[str], lines: Sequence[Mapping[str, str]]) -> None:
        """Replace the file in one operation, which a kill cannot leave incomplete."""
        table = [[line.get(key, "") for key in columns] for line in lines]
        files.replace(self.path, _text([columns, *table]))
        self._columns, self._last_step = [*columns], max(map(_step, lines), default=0)

    def _read(self) -> tuple[list[str], list[dict[str, str]]]:
        """Return the columns and the complete lines. Raises `RecordError` for a file that is no such table."""
        if not self.path.exists():
            return [_STEP], []
        whole, newline, _ = self.path.read_bytes().rpartition(b"\n")  # a line that a kill tore was never confirmed
        try:
            columns, *table = [*csv.reader(io.StringIO((whole + newline).decode(), newline=""))] or [[_STEP]]
            lines = [dict(zip(columns, line, strict=True)) for line in table]
            list(map(_step, lines))
        except (ValueError, KeyError, csv.Error) as error:
            text = f"{self.path} is not a table of rows: {error}. Repair that line, or move the file"
            raise RecordError(text) from None
        return columns, lines


def _step(line: Mapping[str, str]) -> int:
    return int(line[_STEP])


def _text(lines: Sequence[Sequence[str]]) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue().encode()
