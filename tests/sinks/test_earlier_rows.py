"""Rows of earlier starts, which a tracker copies from `metrics.jsonl`."""

from __future__ import annotations

import logging
import math
from pathlib import Path

import pytest

from hooktrainer.metrics import STEP_KEY
from hooktrainer.ports import RunInfo
from hooktrainer.sinks.earlier_rows import earlier_rows
from hooktrainer.sinks.jsonl import JsonlSink


def test_rows_are_read_back_as_they_were_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = {
        1: {"loss": 0.5, "staleness": {1.0: 4.0, 2.5: 1.0}, "val/pass@4": 0.25, STEP_KEY: 1},
        2: {"loss": 0.25, "staleness": {1.0: 5.0}, STEP_KEY: 2},
        3: {"loss": 9.0, STEP_KEY: 3},
    }
    sink = JsonlSink()
    sink.open(RunInfo(directory=tmp_path))
    for step, row in rows.items():
        sink.write(step, row)
    with caplog.at_level(logging.WARNING):
        assert dict(earlier_rows(tmp_path, 2, "MySink")) == {1: rows[1], 2: rows[2]}
    assert not caplog.records


def test_a_value_that_json_lacks_is_nan(tmp_path: Path) -> None:
    sink = JsonlSink()
    sink.open(RunInfo(directory=tmp_path))
    sink.write(1, {"loss": math.inf})
    ((_, row),) = earlier_rows(tmp_path, 1, "MySink")
    assert math.isnan(row["loss"])


def test_the_last_of_repeated_rows_is_read_and_damaged_ones_are_left_out(tmp_path: Path) -> None:
    lines = ['{"step": 2, "a": 1}', '{"step": 1, "a": 2}', "no row", '{"step": 2, "a": 3}', '{"step": 3']
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
    assert [(step, row["a"]) for step, row in earlier_rows(tmp_path, 3, "MySink")] == [(1, 2), (2, 3)]


def test_missing_rows_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert list(earlier_rows(tmp_path, 4, "MySink")) == []
    (record,) = caplog.records
    assert record.getMessage() == (
        "MySink starts without 4 of the 4 rows before the checkpoint: they are not in "
        f"{tmp_path / 'metrics.jsonl'}. Add the sink jsonl"
    )
