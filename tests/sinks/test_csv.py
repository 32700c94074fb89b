"""The CSV sink, read back with the standard library's reader."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from hooktrainer.errors import RecordError
from hooktrainer.ports import RunInfo
from hooktrainer.sinks.csv import CsvSink
from hooktrainer.testing import check_sink


def table(run: Path) -> list[dict[str, str]]:
    with (run / "metrics.csv").open(newline="") as file:
        return [*csv.DictReader(file)]


def test_csv_passes_check_sink() -> None:
    check_sink(CsvSink, steps=lambda run: [int(line["step"]) for line in table(run)])


def test_a_metric_that_appears_later_adds_a_column(tmp_path: Path) -> None:
    sink = CsvSink()
    sink.open(RunInfo(directory=tmp_path))
    sink.write(1, {"loss": 0.1, "response_length": {4.0: 2.0}})
    sink.write(2, {"loss": float("nan"), "val, with a comma": 0.25})
    sink.write(2, {"loss": 9.0})  # repeated after an interrupt
    sink.write(3, {"loss": 1e-30})

    assert table(tmp_path) == [
        {"step": "1", "loss": "0.1", "val, with a comma": ""},
        {"step": "2", "loss": "nan", "val, with a comma": "0.25"},
        {"step": "3", "loss": "1e-30", "val, with a comma": ""},
    ]
    with pytest.raises(RecordError, match="step 2 follows step 3"):
        sink.write(2, {"loss": 1.0})


def test_a_line_that_could_not_be_written_can_be_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: int, path: Path) -> None:
        raise OSError("No space left on device")

    sink = CsvSink()
    sink.open(RunInfo(directory=tmp_path))
    sink.write(1, {"loss": 0.5})
    with monkeypatch.context() as patch:
        patch.setattr("hooktrainer._util.files.sync_file", full)
        with pytest.raises(RecordError, match=r"step 2 cannot be .*run.resume=auto"):
            sink.write(2, {"loss": 0.25})
    sink.write(2, {"loss": 0.25})

    assert [line["step"] for line in table(tmp_path)] == ["1", "2"]


@pytest.mark.parametrize("torn", [b"3,0.", b"3"])
def test_resume_deletes_a_line_that_a_kill_left_incomplete(torn: bytes, tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_bytes(b"step,loss\n1,0.5\n2,0.25\n" + torn)

    sink = CsvSink()
    sink.open(RunInfo(directory=tmp_path))
    assert sink.last_step == 2
    assert sink.rewind(1) == [2]
    sink.write(2, {"loss": 0.125})

    assert (tmp_path / "metrics.csv").read_bytes() == b"step,loss\n1,0.5\n2,0.125\n"


def test_a_file_without_a_whole_line_is_started_again(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_bytes(b"ste")
    sink = CsvSink()
    sink.open(RunInfo(directory=tmp_path))
    sink.write(1, {"loss": 0.5})
    assert (tmp_path / "metrics.csv").read_bytes() == b"step,loss\n1,0.5\n"


@pytest.mark.parametrize("content", ["loss\n0.5\n", "step,loss\n1\n", "step,loss\none,0.5\n"])
def test_open_refuses_a_file_that_is_no_table_of_rows_and_leaves_it(content: str, tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text(content)
    with pytest.raises(RecordError, match=r"metrics.csv is not a table of rows: .*move the file"):
        CsvSink().open(RunInfo(directory=tmp_path))
    assert (tmp_path / "metrics.csv").read_text() == content
