"""Sinks: a file of strict JSON lines, and the console."""

from __future__ import annotations

import io
import json
import logging
import math
import resource
import shutil
import signal
from pathlib import Path
from types import MappingProxyType
from typing import NoReturn

import numpy as np
import pytest
from rich.console import Console

from hooktrainer.errors import MetricError, RecordError
from hooktrainer.ports import RunInfo, Sink
from hooktrainer.sinks.console import ConsoleSink, plain_line
from hooktrainer.sinks.jsonl import JsonlSink

ROW = {
    "critic/score/mean": 0.431,
    "actor/pg_loss": -0.01234,
    "actor/entropy": 1.234,
    "actor/grad_norm": 0.52,
    "training/off_policy/staleness/mean": 1.25,
    "response_length/mean": 6.5,
    "timing_s/step": 3.21,
    "val/score/mean": 0.5,
}


def strict(line: str) -> dict[str, object]:
    """Parse a line as strict JSON, without NaN."""

    def refuse(word: str) -> NoReturn:
        raise AssertionError(f"{word} is no JSON")

    return json.loads(line, parse_constant=refuse)


def rows_of(directory: Path) -> list[dict[str, object]]:
    return [strict(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]


def _interrupt(*_args: object, **_options: object) -> NoReturn:
    raise KeyboardInterrupt


def shown(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("kind", [JsonlSink, ConsoleSink])
class TestEverySink:
    def test_sink_is_constructed_from_its_options(self, kind: type) -> None:
        assert isinstance(kind(), Sink)
        assert kind(critical=True).critical

    def test_sink_may_be_closed_twice_and_before_open(self, kind: type, tmp_path: Path) -> None:
        sink = kind()
        sink.close("completed")
        sink.open(RunInfo(directory=tmp_path))
        sink.close("completed")
        sink.close("completed")


class TestJsonl:
    def test_numpy_scalars_are_written_and_non_finite_values_are_null_with_one_warning(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        sink = JsonlSink()
        sink.open(RunInfo(directory=tmp_path))
        row = {"acc": np.float32(0.5), "n": np.int64(3), "nan": math.nan, "inf": math.inf}
        with caplog.at_level(logging.WARNING, logger="hooktrainer"):
            sink.write(1, row)
            sink.write(2, row)
        expected = {"acc": 0.5, "n": 3, "nan": None, "inf": None}
        assert rows_of(tmp_path) == [{"step": 1, **expected}, {"step": 2, **expected}]
        assert [record.getMessage() for record in caplog.records] == [
            "metrics.jsonl: NaN and infinite values are written as null: inf, nan"
        ]

    def test_a_row_is_flat_and_has_an_integer_step(self, tmp_path: Path) -> None:
        sink = JsonlSink()
        sink.open(RunInfo(directory=tmp_path / "new" / "run"))
        sink.write(3, {"staleness": MappingProxyType({1.0: 5, 0.056: 1}), "loss": 0.1, "step": 9.0})
        (row,) = rows_of(tmp_path / "new" / "run")
        assert row == {"step": 3, "staleness/1": 5, "staleness/0.056": 1, "loss": 0.1}
        assert type(row["step"]) is int
        assert next(iter(row)) == "step"

    def test_a_row_is_in_the_file_when_write_returns(self, tmp_path: Path) -> None:
        sink = JsonlSink()
        sink.open(RunInfo(directory=tmp_path))
        sink.write(1, {"loss": 1.0})
        assert rows_of(tmp_path) == [{"step": 1, "loss": 1.0}]

    @pytest.mark.parametrize("step", [1, 2])
    def test_step_that_does_not_ascend_is_refused_after_a_restart(self, tmp_path: Path, step: int) -> None:
        for first in (1, 2):
            sink = JsonlSink()
            sink.open(RunInfo(directory=tmp_path))
            sink.write(first, {})
            sink.close("completed")
        sink.open(RunInfo(directory=tmp_path))
        with pytest.raises(RecordError, match=f"step {step} follows step 2"):
            sink.write(step, {})
        sink.write(3, {})
        with pytest.raises(RecordError, match="step 2 follows step 3"):
            sink.write(2, {})
        sink.write(3, {})  # handed over once more, it is there already
        assert [row["step"] for row in rows_of(tmp_path)] == [1, 2, 3]

    def test_incomplete_last_line_is_removed_on_open(self, tmp_path: Path) -> None:
        (tmp_path / "metrics.jsonl").write_text('{"step": 4, "loss": 1.0}\n{"step": 5, "lo')
        sink = JsonlSink()
        sink.open(RunInfo(directory=tmp_path))
        sink.write(5, {"loss": 2.0})
        assert rows_of(tmp_path) == [{"step": 4, "loss": 1.0}, {"step": 5, "loss": 2.0}]

    def test_rows_may_be_removed_between_open_and_the_first_write(self, tmp_path: Path) -> None:
        path = tmp_path / "metrics.jsonl"
        path.write_text('{"step": 4}\n{"step": 5}\n')
        sink = JsonlSink()
        sink.open(RunInfo(directory=tmp_path))
        path.write_text('{"step": 4}\n')
        sink.write(5, {})
        assert [row["step"] for row in rows_of(tmp_path)] == [4, 5]

    def test_failed_write_leaves_no_partial_row(self, tmp_path: Path) -> None:
        sink = JsonlSink()
        sink.open(RunInfo(directory=tmp_path))
        with pytest.raises(MetricError, match="'note'"):
            sink.write(1, {"loss": 1.0, "note": "text"})
        sink.write(1, {"loss": 1.0})
        assert rows_of(tmp_path) == [{"step": 1, "loss": 1.0}]

    def test_writing_before_open_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(RecordError, match="the sink is not open"):
            JsonlSink().write(1, {})


class TestPlainLines:
    def test_plain_line_shows_the_main_metrics_within_120_columns(self) -> None:
        line = plain_line(12, ROW, 1000)
        assert line == (
            "step   12/1000  score   0.431  loss -0.0123  entropy    1.23  grad_norm    0.52  staleness    1.25"
            "     3.21 s  val 0.5"
        )
        assert len(line) <= 120

    def test_missing_metrics_are_omitted(self) -> None:
        assert plain_line(3, {"critic/score/mean": math.nan, "actor/pg_loss": {1.0: 2}}) == "step 3  score     nan"

    def test_one_line_per_step_is_printed_without_a_terminal(self, tmp_path: Path) -> None:
        console = Console(file=io.StringIO(), force_terminal=False, width=40, _environ={})
        sink = ConsoleSink()
        sink.console = console
        sink.open(RunInfo(total_steps=10))
        sink.write(1, ROW)
        sink.write(2, ROW)
        sink.close("completed")
        assert shown(console) == f"{plain_line(1, ROW, 10)}\n{plain_line(2, ROW, 10)}\n"

    def test_repeated_write_of_a_step_is_shown_once(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        console = Console(file=io.StringIO(), force_terminal=False, width=40, _environ={})
        sink = ConsoleSink()
        sink.console = console
        sink.open(RunInfo(total_steps=10))
        sink.write(1, ROW)
        sink.write(1, ROW)
        with monkeypatch.context() as patched:
            patched.setattr(console, "print", _interrupt)
            with pytest.raises(KeyboardInterrupt):
                sink.write(2, ROW)
        sink.write(2, ROW)
        sink.open(RunInfo(total_steps=10))
        sink.write(1, ROW)
        assert shown(console) == f"{plain_line(1, ROW, 10)}\n" * 2

    def test_a_dumb_terminal_gets_plain_lines(self, tmp_path: Path) -> None:
        console = Console(file=io.StringIO(), force_terminal=True, _environ={"TERM": "dumb"})
        sink = ConsoleSink()
        sink.console = console
        sink.open(RunInfo(directory=tmp_path))
        sink.write(1, ROW)
        assert "\x1b[?25l" not in shown(console)


@pytest.mark.parametrize("room", [5, 40])
def test_disk_that_fills_within_a_row_leaves_complete_rows(room: int, tmp_path: Path) -> None:
    sink = JsonlSink()
    sink.open(RunInfo(directory=tmp_path))
    sink.write(1, {"loss": 1.0})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (sink.path.stat().st_size + room, limits[1]))
    try:
        with pytest.raises(RecordError, match=r"row of step 2 cannot be written to .*File too large.* run.resume=auto"):
            sink.write(2, {"loss": 2.0, "a" * 60: 1.0})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    sink.write(2, {"loss": 3.0})

    assert [json.loads(line)["loss"] for line in sink.path.read_text().splitlines()] == [1.0, 3.0]


def test_removed_directory_is_an_error_with_a_fix(tmp_path: Path) -> None:
    sink = JsonlSink()
    sink.open(RunInfo(directory=tmp_path / "run"))
    sink.write(1, {"loss": 1.0})
    shutil.rmtree(tmp_path / "run")

    with pytest.raises(RecordError, match="row of step 2 cannot be written .*No such file"):
        sink.write(2, {"loss": 2.0})


def test_rows_removed_by_another_process_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sink = JsonlSink()
    sink.open(RunInfo(directory=tmp_path))
    for step in (1, 2):
        sink.write(step, {"loss": 1.0})
    sink.path.write_text("")
    for step in (3, 4):
        sink.write(step, {"loss": 1.0})

    assert [record.getMessage() for record in caplog.records] == [
        f"{sink.path}: rows up to step 2 were removed by another process"
    ]
    assert [json.loads(line)["step"] for line in sink.path.read_text().splitlines()] == [3, 4]
