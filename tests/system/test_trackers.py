"""Trackers after a kill and a resume: their newest run has every step once, with the values of `metrics.jsonl`."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from helpers.subprocess_runs import CONFIG, FIT, SubprocessRun

pytest.importorskip("wandb")
pytest.importorskip("mlflow")
pytest.importorskip("sqlalchemy")

from helpers.wandb_files import offline_runs

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # connections of MLflow's pool
]
PLUGINS = """
plugins:
  - metric_aggregation
  - weight_sync
  - {use: checkpoint, every: 2}
  - {use: log_after_collect, sinks: [console, tensorboard, {use: wandb, project: mine}, mlflow, jsonl]}
"""
SCORE = "critic/score/mean"


def mlflow_runs(run: Path) -> list[tuple[Any, list[tuple[int, float]]]]:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{run / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("hooktrainer")
    found = client.search_runs([experiment.experiment_id], order_by=["attributes.start_time ASC"])
    histories = [client.get_metric_history(each.info.run_id, SCORE) for each in found]
    return [(each, [(at.step, at.value) for at in points]) for each, points in zip(found, histories, strict=True)]


def test_no_step_is_lost_or_doubled_after_a_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    (tmp_path / "run.yaml").write_text(CONFIG + PLUGINS)
    killed = SubprocessRun(tmp_path, *FIT, "run.yaml")
    killed.until("step ", times=7)
    killed.send(signal.SIGKILL)
    assert killed.ended() == -signal.SIGKILL
    last = killed.rows()[-1] + 3
    run = tmp_path / "runs" / "run"

    resumed = SubprocessRun(tmp_path, *FIT, "run.yaml", "run.resume=auto", f"trainer.total_steps={last}")
    assert resumed.ended() == 0, resumed.err

    lines = (run / "metrics.jsonl").read_text().splitlines()
    expected = [(row["step"], row[SCORE]) for row in map(json.loads, lines)]
    assert [step for step, _ in expected] == list(range(1, last + 1))
    scalars = EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0}).Reload().Scalars(SCORE)
    shown = [(event.step, event.value) for event in scalars]
    assert shown == [(step, pytest.approx(value)) for step, value in expected]  # TensorBoard has single precision
    *_, tracked = offline_runs(run)
    assert [(row["_step"], row[SCORE]) for row in tracked.rows] == expected
    (first, _), (newest, points) = mlflow_runs(run)
    assert points == expected
    assert first.data.tags["hooktrainer.group"] == newest.data.tags["hooktrainer.group"] == tracked.group
    assert (first.info.status, newest.info.status, tracked.exit_code) == ("KILLED", "FINISHED", 0)
    assert (newest.data.params["trainer.total_steps"], tracked.config["trainer"]["total_steps"]) == (str(last), last)
    left = [item for item in resumed.left() if "wandb-" not in item]  # temporary folders of the killed process
    assert left == []
