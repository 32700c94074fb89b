"""Rows in a file that was interrupted, cut, damaged, or replaced by a directory."""

from __future__ import annotations

import gc
import json
import os
import sys
from pathlib import Path
from types import FrameType
from typing import Self

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hooktrainer.errors import RecordError
from hooktrainer.ports import RunInfo
from hooktrainer.sinks import jsonl
from hooktrainer.sinks.jsonl import JsonlSink


def steps(directory: Path) -> list[int]:
    return [json.loads(line)["step"] for line in (directory / "metrics.jsonl").read_text().splitlines()]


def opened(directory: Path, text: str | bytes | None = None) -> JsonlSink:
    if text is not None:
        (directory / "metrics.jsonl").write_bytes(text if isinstance(text, bytes) else text.encode())
    sink = JsonlSink()
    sink.open(RunInfo(directory=directory))
    return sink


def lines(*steps: int) -> str:
    return "".join(f'{{"step": {step}}}\n' for step in steps)


class InterruptAt:
    """Raises `KeyboardInterrupt` at the n-th line that is run in the sink's module."""

    def __init__(self, number: int) -> None:
        self._number = number
        self.reached = False

    def __enter__(self) -> Self:
        self._before = sys.gettrace()
        sys.settrace(self._enter)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def _enter(self, frame: FrameType, _event: str, _arg: object) -> object:
        return self._step if frame.f_code.co_filename == jsonl.__file__ else None

    def _step(self, _frame: FrameType, event: str, _arg: object) -> object:
        if event == "line" and not self.reached:
            self._number -= 1
            if self._number == 0:
                self.reached = True
                raise KeyboardInterrupt
        return self._step


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a file between `open` and `with`
def test_row_interrupted_at_any_line_and_written_again_is_present_once(tmp_path: Path) -> None:
    for number in range(1, 1000):
        directory = tmp_path / str(number)
        directory.mkdir()
        sink = opened(directory)
        sink.write(1, {"a": 1.0})
        with InterruptAt(number) as interrupt:
            try:
                sink.write(2, {"a": 2.0, "b": {1.0: 2}})
            except KeyboardInterrupt:
                gc.collect(1)  # only recent objects, not those of torch
        sink.write(2, {"a": 2.0, "b": {1.0: 2}})
        sink.write(3, {})
        assert steps(directory) == [1, 2, 3]
        if not interrupt.reached:
            break
    assert number > 20


@pytest.mark.parametrize("after", [0, 5, 1000])
def test_interrupted_write_leaves_complete_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    sink = opened(tmp_path)
    sink.write(1, {})

    def interrupted(file: int) -> None:
        os.truncate(file, min(os.fstat(file).st_size, len(lines(1)) + after))
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("hooktrainer.sinks.jsonl.os.fsync", interrupted)
        with pytest.raises(KeyboardInterrupt):
            sink.write(2, {"loss": 1.0})
    assert steps(tmp_path) == [1]


@pytest.mark.parametrize("last", [1, 2, 4, 9])
def test_a_file_that_another_process_replaced_is_read_again(tmp_path: Path, last: int) -> None:
    sink = opened(tmp_path)
    sink.write(1, {})
    sink.write(2, {})
    (tmp_path / "other").write_text(lines(1, last) if last > 1 else lines(1))
    (tmp_path / "other").replace(tmp_path / "metrics.jsonl")

    if last == 9:
        with pytest.raises(RecordError, match="step 5 follows step 9"):
            sink.write(5, {})
    else:
        sink.write(5, {})
        assert steps(tmp_path) == sorted({1, last, 5})


def test_rows_are_appended_without_a_read_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = opened(tmp_path)
    sink.write(1, {})
    monkeypatch.setattr(jsonl.StoredRow, "of", lambda line: pytest.fail(f"{line!r} was read"))

    sink.write(2, {})
    sink.write(2, {})
    sink.write(3, {})

    assert steps(tmp_path) == [1, 2, 3]


def test_a_row_is_on_the_disk_when_write_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = opened(tmp_path)
    synced: list[int] = []
    real = os.fsync

    def fsync(file: int) -> None:
        synced.append(os.fstat(file).st_size)
        real(file)

    monkeypatch.setattr("hooktrainer.sinks.jsonl.os.fsync", fsync)
    sink.write(1, {"loss": 1.0})

    assert synced == [sink.path.stat().st_size]


@given(st.lists(st.integers(1, 200_000), min_size=1, max_size=4), st.booleans())
def test_last_row_of_any_length_is_found(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], torn: bool
) -> None:
    directory = tmp_path_factory.mktemp("rows")
    rows = [json.dumps({"step": step, "x" * length: 0}) for step, length in enumerate(lengths, start=1)]
    sink = opened(directory, "\n".join(rows) + ("\n" + '{"step": 9, ' + "y" * lengths[0] if torn else "\n"))
    with pytest.raises(RecordError, match=f"step 1 follows step {len(lengths)} "):
        sink.write(1, {})
    sink.write(9, {})
    assert steps(directory) == [*range(1, len(lengths) + 1), 9]


class TestRewind:
    @pytest.mark.parametrize(
        ("rows", "missing"),
        [
            ([1, 2], "rows 3-8 are"),
            ([1, 2, 3, 4, 5, 6, 7], "row 8 is"),
            ([1, 2, 4, 5, 8], "rows 3, 6-7 are"),
            ([3, 4, 5, 6, 7, 8], "rows 1-2 are"),
            ([2, 3, 4, 6, 7, 8], "rows 1, 5 are"),
            ([], "rows 1-8 are"),
        ],
    )
    def test_rows_missing_before_the_checkpoint_are_logged(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture, rows: list[int], missing: str
    ) -> None:
        sink = opened(tmp_path, lines(*rows))
        assert sink.rewind(8) == []
        assert [record.getMessage() for record in caplog.records] == [
            f"{sink.path}: {missing} missing; the run resumes from step 8 without them"
        ]
        sink.write(9, {})
        assert steps(tmp_path) == [*rows, 9]

    @pytest.mark.parametrize(
        ("rows", "missing"), [([5, 6, 7], None), ([6, 7], "row 5 is"), ([5, 7], "row 6 is"), ([], "rows 5-7 are")]
    )
    def test_run_resumed_in_another_directory_has_rows_from_its_first_step(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture, rows: list[int], missing: str | None
    ) -> None:
        assert opened(tmp_path).rewind(4) == []
        assert not caplog.records
        sink = opened(tmp_path, lines(*rows, 8))
        assert sink.rewind(7) == [8]
        assert [record.getMessage() for record in caplog.records] == [
            f"{sink.path}: {text} missing; the run resumes from step 7 without them" for text in [missing] if text
        ]

    def test_unreadable_row_is_an_error_with_its_line(self, tmp_path: Path) -> None:
        text = lines(1) + '{"step": 2, "lo\n' + lines(3, 4)
        sink = opened(tmp_path, text)
        with pytest.raises(RecordError, match=r"metrics\.jsonl, line 2, is not a row: .* Repair or remove that line"):
            sink.rewind(3)
        assert sink.path.read_text() == text

    @pytest.mark.parametrize("row", ["[]", "{}", '{"step": "2"}', "null", "", "\x00\x00", "[" * 100_000])
    def test_line_that_is_not_a_row_is_an_error(self, tmp_path: Path, row: str) -> None:
        with pytest.raises(RecordError, match="line 2, is not a row"):
            opened(tmp_path, lines(1) + row + "\n").rewind(2)
        with pytest.raises(RecordError, match="line 2, is not a row"):
            opened(tmp_path).write(3, {})

    def test_unreadable_lines_after_the_checkpoint_are_removed_and_logged(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        sink = opened(tmp_path, lines(1, 2) + "garbage\n" + lines(4) + "more\n")
        assert sink.rewind(2) == [4]
        assert steps(tmp_path) == [1, 2]
        assert [record.getMessage() for record in caplog.records] == [
            (
                f"{sink.path}: unreadable rows after step 2 were deleted: line 3, 5; the earlier file is kept as "
                "metrics.jsonl.set_aside"
            )
        ]

    @pytest.mark.parametrize(
        ("text", "deleted", "kept", "said"),
        [
            (lines(1, 2, 3, 4, 4, 5, 6), [6], [1, 2, 3, 4, 5], "row 4 occurred more than once"),
            (lines(5, 4, 3, 2, 1), [], [1, 2, 3, 4, 5], "rows 1-4 followed a later step and was moved"),
            (lines(7, 6, 5, 4, 3, 2, 1), [6, 7], [1, 2, 3, 4, 5], "rows 1-5 followed a later step and was moved"),
            (lines(1, 2) + '{"step": 3, "a": NaN}\n' + lines(4, 5), [], [1, 2, 3, 4, 5], "row 3 had NaN or infinite"),
            (lines(1, 2) + '{"a": -Infinity, "step": 3}\n' + lines(4, 5), [], [1, 2, 3, 4, 5], "row 3 had NaN"),
            (lines(1, 6, 7, 2, 3, 4, 5), [6, 7], [1, 2, 3, 4, 5], "row 2 followed a later step and was moved"),
            (lines(1, 2, 3, 1, 2, 3, 4, 5), [], [1, 2, 3, 4, 5], "rows 1-3 occurred more than once"),
        ],
    )
    def test_rows_that_are_not_ascending_unique_and_strict_are_repaired_and_the_file_is_kept(
        self,
        tmp_path: Path,
        caplog: pytest.LogCaptureFixture,
        text: str,
        deleted: list[int],
        kept: list[int],
        said: str,
    ) -> None:
        sink = opened(tmp_path, text)
        assert sink.rewind(5) == deleted
        assert steps(tmp_path) == kept
        assert "NaN" not in sink.path.read_text()
        assert (tmp_path / "metrics.jsonl.set_aside").read_text() == text
        (message,) = [record.getMessage() for record in caplog.records]
        assert said in message
        assert message.endswith("the earlier file is kept as metrics.jsonl.set_aside")
        sink.write(6, {})
        assert steps(tmp_path) == [*kept, 6]

    @pytest.mark.parametrize(
        ("marked", "named"), [([1], "row 1 had a byte order mark"), ([1, 2, 4], "rows 1-2, 4 had a byte order mark")]
    )
    def test_a_byte_order_mark_before_a_row_is_removed_and_logged(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture, marked: list[int], named: str
    ) -> None:
        bom = "\N{ZERO WIDTH NO-BREAK SPACE}"
        text = "".join((bom if step in marked else "") + lines(step) for step in range(1, 6))
        sink = opened(tmp_path, text)
        assert sink.last_step == 5
        assert sink.rewind(4) == [5]
        assert sink.path.read_text() == lines(1, 2, 3, 4)
        assert (tmp_path / "metrics.jsonl.set_aside").read_text() == text
        (message,) = [record.getMessage() for record in caplog.records]
        assert named in message

    def test_a_row_is_written_after_one_with_a_byte_order_mark(self, tmp_path: Path) -> None:
        sink = opened(tmp_path, "\N{ZERO WIDTH NO-BREAK SPACE}" + lines(1))
        sink.write(2, {})
        assert sink.last_step == 2

    def test_a_second_repair_keeps_the_file_of_the_first(self, tmp_path: Path) -> None:
        for number in (1, 2):
            opened(tmp_path, lines(number, number)).rewind(2)
        names = [path.name for path in tmp_path.iterdir() if "aside" in path.name]
        assert sorted(names) == ["metrics.jsonl.set_aside", "metrics.jsonl.set_aside.1"]

    def test_the_last_of_two_rows_of_a_step_is_kept(self, tmp_path: Path) -> None:
        sink = opened(tmp_path, '{"step": 1, "a": 1}\n{"step": 1, "a": 2}\n')
        sink.rewind(1)
        assert json.loads(sink.path.read_text()) == {"step": 1, "a": 2}

    def test_rows_that_are_in_order_are_left_alone(self, tmp_path: Path) -> None:
        sink = opened(tmp_path, '{"a":NaN , "step":9}\n'.replace("NaN ", "1") + lines(10) + '{"step": 11, "lo')
        assert sink.rewind(10) == []
        assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]

    def test_a_deleted_file_of_a_run_that_saved_here_is_said(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        (tmp_path / "checkpoints" / "step_00000004").mkdir(parents=True)
        sink = opened(tmp_path)
        assert sink.rewind(4) == []
        assert [record.getMessage() for record in caplog.records] == [
            f"{sink.path}: rows 1-4 are missing; the run resumes from step 4 without them"
        ]

    @pytest.mark.parametrize("row", ['{"step": 2.5}', '{"step": NaN}', '{"step": true}', "NaN", '{"loss": 1}'])
    def test_a_line_without_a_step_is_an_error_before_the_checkpoint_and_is_deleted_after_it(
        self, tmp_path: Path, row: str
    ) -> None:
        sink = opened(tmp_path, lines(1) + row + "\n" + lines(3))
        with pytest.raises(RecordError, match="line 2, is not a row"):
            sink.rewind(3)
        assert sink.rewind(1) == [3]


def test_directory_in_place_of_the_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").mkdir()
    with pytest.raises(RecordError, match=r"rows cannot be written to .*metrics\.jsonl: .* Move or remove that path"):
        opened(tmp_path)
    assert not any((tmp_path / "metrics.jsonl").iterdir())
