"""The Weights & Biases sink, read back from its offline files with the protocol buffers of the library."""

from __future__ import annotations

import logging
import math
from pathlib import Path

import pytest

from hooktrainer.metrics import STEP_KEY
from hooktrainer.ports import RunInfo
from hooktrainer.sinks.wandb import WandbSink
from hooktrainer.testing import check_sink

wandb = pytest.importorskip("wandb")

from helpers.wandb_files import OfflineRun, offline_runs  # noqa: E402 (needs wandb)

CONFIG = {"seed": 3, "optim": {"lr": 0.5}, "plugins": [{"use": "staleness"}]}


def ended(run: Path) -> list[OfflineRun]:
    """Return the offline runs once their files are complete."""
    wandb.teardown()
    return offline_runs(run)


def opened(directory: Path, step: int = 0, start: int = 1, **options: object) -> WandbSink:
    sink = WandbSink(**options)
    sink.open(RunInfo(directory=directory, name="mine", id="3f2a", config=CONFIG, resumed_step=step, start=start))
    return sink


@pytest.mark.slow
def test_wandb_passes_check_sink() -> None:
    check_sink(WandbSink, steps=lambda run: [row["_step"] for row in ended(run)[-1].rows])


def test_values_histograms_configuration_and_end_are_read_back(tmp_path: Path) -> None:
    sink = opened(tmp_path)
    sink.write(1, {"loss": 0.5, STEP_KEY: 1, "staleness": {3.0: 1.0, 1.0: 4.0}})
    sink.write(2, {"loss": math.nan, STEP_KEY: 2})
    sink.close("failed")

    (run,) = ended(tmp_path)
    assert (run.id, run.group, run.exit_code) == ("3f2a", "mine-3f2a", 1)
    assert {key: run.config[key] for key in CONFIG} == CONFIG
    assert [(row["_step"], row[STEP_KEY]) for row in run.rows] == [(1, 1), (2, 2)]
    assert run.rows[0]["loss"] == 0.5
    assert math.isnan(float(run.rows[1]["loss"]))
    assert run.rows[0]["staleness/bins"] == [0.0, 2.0, 4.0]
    assert run.rows[0]["staleness/values"] == [4.0, 1.0]


def test_local_updates_have_an_axis_of_their_own(tmp_path: Path) -> None:
    sink = opened(tmp_path, per_iteration=True)
    for update in (1, 2):
        sink.write_iteration(update, {"loss": float(update), STEP_KEY: 1})
    sink.write(1, {"loss": 0.5, STEP_KEY: 1})
    sink.close("completed")

    (run,) = ended(tmp_path)
    assert [(row["iteration/number"], row["iteration/loss"]) for row in run.rows[:2]] == [(1, 1.0), (2, 2.0)]
    assert [(row[STEP_KEY], row["loss"]) for row in run.rows[2:]] == [(1, 0.5)]
    assert run.axes["iteration/loss"] == "iteration/number"
    assert run.axes["loss"] == STEP_KEY


@pytest.mark.slow
def test_a_run_that_has_no_step_left_begins_no_run(tmp_path: Path) -> None:
    opened(tmp_path, step=4, start=2).close("already_done")
    assert ended(tmp_path) == []


@pytest.mark.slow
def test_a_server_that_is_down_leaves_an_offline_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    with caplog.at_level(logging.WARNING, logger="hooktrainer"):
        sink = opened(tmp_path, mode="online", server_timeout_s=2.0)
    sink.write(1, {"loss": 0.5})
    sink.close("completed")

    assert "Weights & Biases cannot be reached" in caplog.text
    assert [row["_step"] for row in ended(tmp_path)[-1].rows] == [1]
