"""check_sink: what it reports of a faulty sink, and the sinks that it accepts."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest

from hooktrainer.events import Status
from hooktrainer.ports import RunInfo
from hooktrainer.sinks.console import ConsoleSink
from hooktrainer.sinks.jsonl import JsonlSink
from hooktrainer.testing import check_sink


@attrs.define
class Appending:
    """Appends the step and the score to a file."""

    path: Path = attrs.field(default=Path(), init=False)

    def open(self, run: RunInfo) -> None:
        self.path = run.directory / "scores.csv"

    def write(self, step: int, row: Mapping[str, Any]) -> None:
        with self.path.open("a", newline="") as file:
            csv.writer(file).writerow([step, row.get("critic/score/mean")])

    def close(self, status: Status) -> None:
        pass


def csv_steps(run: Path) -> list[int]:
    with (run / "scores.csv").open(newline="") as file:
        return [int(step) for step, _ in csv.reader(file)]


def jsonl_steps(run: Path) -> list[int]:
    return [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]


@attrs.define
class TruncatesInOpen(Appending):
    def open(self, run: RunInfo) -> None:
        super().open(run)
        self.path.open("w").close()


@attrs.define
class TruncatesInTheFirstWrite(Appending):
    first: bool = attrs.field(default=True, init=False)

    def write(self, step: int, row: Mapping[str, Any]) -> None:
        if self.first:
            self.path.open("w").close()
        self.first = False
        super().write(step, row)


@attrs.define
class RemovesTheFile(Appending):
    def open(self, run: RunInfo) -> None:
        super().open(run)
        self.path.unlink(missing_ok=True)


@attrs.define
class Buffers(Appending):
    rows: list[tuple[int, Mapping[str, Any]]] = attrs.field(factory=list, init=False)

    def write(self, step: int, row: Mapping[str, Any]) -> None:
        self.rows.append((step, row))

    def close(self, status: Status) -> None:
        for step, row in self.rows:
            super().write(step, row)
        self.rows.clear()


@attrs.define
class OnlyKnownColumns(Appending):
    columns: tuple[str, ...] = attrs.field(default=(), init=False)

    def write(self, step: int, row: Mapping[str, Any]) -> None:
        self.columns = self.columns or tuple(row)
        if unknown := set(row) - set(self.columns):
            raise ValueError(f"unknown column {unknown.pop()}")


@attrs.define
class ClosesOnlyAfterOpen(Appending):
    file: Any = attrs.field(init=False)

    def open(self, run: RunInfo) -> None:
        super().open(run)
        self.file = self.path.open("a")

    def close(self, status: Status) -> None:
        self.file.close()


@attrs.define
class ForgetsEarlierProcesses(Appending):
    seen: list[int] = attrs.field(factory=list, init=False)

    def write(self, step: int, row: Mapping[str, Any]) -> None:
        self.seen.append(step)
        super().write(step, row)

    def rewind(self, step: int) -> Sequence[int]:
        return [seen for seen in self.seen if seen > step]


@attrs.define
class ReportsWithoutDeleting(Appending):
    def rewind(self, step: int) -> Sequence[int]:
        return sorted({seen for seen in csv_steps(self.path.parent) if seen > step})


@attrs.define
class DeletesTheStepOfTheCheckpoint(ReportsWithoutDeleting):
    def rewind(self, step: int) -> Sequence[int]:
        return super().rewind(step - 1)


@attrs.define
class OpensWithoutTheRun(Appending):
    def open(self) -> None: ...


@attrs.define
class HasAnUndocumentedOption(Appending):
    separator: str = ","


class NoOptions(Appending):
    pass


@attrs.define
class WithoutClose:
    def open(self, run: RunInfo) -> None: ...
    def write(self, step: int, row: Mapping[str, Any]) -> None: ...


@pytest.mark.parametrize(
    ("cls", "message"),
    [
        (TruncatesInOpen, r'open of a resumed run deletes earlier rows: scores.csv had \d+ bytes and has 0.*"a", not'),
        (TruncatesInTheFirstWrite, "the first write of a resumed run deletes earlier rows: scores.csv had"),
        (RemovesTheFile, "open of a resumed run deletes earlier rows: scores.csv had"),
        (Buffers, r"Buffers.write leaves all rows in memory until close.*flush each row"),
        (
            OnlyKnownColumns,
            r"OnlyKnownColumns.write, at step 2 with .* raises ValueError: unknown column val/score/mean",
        ),
        (ClosesOnlyAfterOpen, "close, before open, raises AttributeError"),
        (ForgetsEarlierProcesses, r"rewind\(2\) returns \[\]; expected \[3, 4\].*an earlier process wrote"),
        (ReportsWithoutDeleting, r"has rows of the steps \[1, 2, 3, 4\]; expected \[1, 2\]"),
        (DeletesTheStepOfTheCheckpoint, r"rewind\(3\) deletes steps \[3\]; rows up to step 3 must be kept"),
        (OpensWithoutTheRun, r"open of OpensWithoutTheRun of .* takes \(self\), but a sink has open\(self, run\)"),
        (HasAnUndocumentedOption, "no docstring under the option separator"),
        (NoOptions, "is not an attrs class, so it has no options"),
        (WithoutClose, "is not a sink: it has no close"),
    ],
)
def test_check_sink_reports_a_sink_that_would_lose_rows_or_end_a_run(cls: type[Any], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_sink(cls, steps=csv_steps)


def test_rows_that_rewind_leaves_are_found_without_a_reader() -> None:
    with pytest.raises(AssertionError, match=r"rewind\(2\) returns \[3, 4\]; expected \[3\]"):
        check_sink(ReportsWithoutDeleting)


def test_sinks_that_keep_their_rows_pass() -> None:
    check_sink(Appending)
    check_sink(Appending, steps=csv_steps)
    check_sink(JsonlSink, steps=jsonl_steps)
    check_sink(ConsoleSink)
