"""The TensorBoard sink, read back with TensorBoard's own reader."""

from __future__ import annotations

import math
from pathlib import Path

import attrs
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import metadata
from tensorboard.plugins.hparams.api_pb2 import Status

from hooktrainer.metrics import STEP_KEY
from hooktrainer.ports import RunInfo
from hooktrainer.sinks.tensorboard import TensorBoardSink
from hooktrainer.testing import check_sink

CONFIG = {"seed": 3, "optim": {"lr": 0.5}, "plugins": [{"use": "staleness", "sizes": [1, 2]}], "data": None}


def read(run: Path) -> EventAccumulator:
    return EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0, "histograms": 0}).Reload()


def scalars(run: Path, tag: str) -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in read(run).Scalars(tag)]


def hyperparameters(run: Path) -> dict[str, object]:
    content = read(run).PluginTagToContent(metadata.PLUGIN_NAME)[metadata.SESSION_START_INFO_TAG]
    start = metadata.parse_session_start_info_plugin_data(content)
    return {key: getattr(value, value.WhichOneof("kind")) for key, value in start.hparams.items()}


def opened(directory: Path, step: int = 0, start: int = 1) -> TensorBoardSink:
    sink = TensorBoardSink()
    sink.open(RunInfo(directory=directory, id="3f2a", config=CONFIG, resumed_step=step, start=start))
    return sink


def test_tensorboard_passes_check_sink() -> None:
    check_sink(TensorBoardSink, steps=lambda run: [step for step, _ in scalars(run, "critic/score/mean")])


def test_values_histograms_and_configuration_are_read_back(tmp_path: Path) -> None:
    sink = opened(tmp_path)
    sink.write(1, {"loss": 0.5, STEP_KEY: 1, "staleness": {3.0: 1.0, 1.0: 4.0}})
    sink.write(2, {"loss": math.nan, STEP_KEY: 2})

    (first, second) = scalars(tmp_path, "loss")
    assert (first, second[0], math.isnan(second[1])) == ((1, 0.5), 2, True)
    assert scalars(tmp_path, STEP_KEY) == [(1, 1.0), (2, 2.0)]
    (staleness,) = read(tmp_path).Histograms("staleness")
    found = staleness.histogram_value
    assert (staleness.step, found.num, found.min, found.max, found.sum) == (1, 5.0, 1.0, 3.0, 7.0)
    assert (list(found.bucket_limit), list(found.bucket)) == ([1.0, 3.0], [4.0, 1.0])
    assert hyperparameters(tmp_path) == {
        "seed": 3.0,
        "optim.lr": 0.5,
        "plugins.staleness.use": "staleness",
        "plugins.staleness.sizes": "[1, 2]",
        "data": "null",
    }


@pytest.mark.parametrize(("status", "shown"), [("completed", "SUCCESS"), ("failed", "FAILURE")])
def test_the_end_of_the_run_is_read_back(status: str, shown: str, tmp_path: Path) -> None:
    sink = opened(tmp_path)
    sink.write(1, {"loss": 0.5})
    sink.close(status)

    content = read(tmp_path).PluginTagToContent(metadata.PLUGIN_NAME)[metadata.SESSION_END_INFO_TAG]
    assert metadata.parse_session_end_info_plugin_data(content).status == Status.Value(f"STATUS_{shown}")


def test_a_resume_after_a_torn_write_shows_each_step_once(tmp_path: Path) -> None:
    killed = opened(tmp_path)
    for step in (1, 2, 3, 4):
        killed.write(step, {"loss": float(step)})
    (path,) = (tmp_path / "tensorboard").iterdir()
    path.write_bytes(path.read_bytes()[:-5])  # a kill within the last write

    resumed = opened(tmp_path, step=2, start=2)
    assert resumed.rewind(2) == [3]
    resumed.write(3, {"loss": 30.0})

    assert scalars(tmp_path, "loss") == [(1, 1.0), (2, 2.0), (3, 30.0)]


def test_a_run_that_has_no_step_left_changes_nothing(tmp_path: Path) -> None:
    opened(tmp_path).write(1, {"loss": 0.5})
    before = [path.name for path in (tmp_path / "tensorboard").iterdir()]
    opened(tmp_path, step=1, start=2).close("already_done")
    assert [path.name for path in (tmp_path / "tensorboard").iterdir()] == before


def test_local_updates_have_an_axis_of_their_own_over_a_resume(tmp_path: Path) -> None:
    run = RunInfo(directory=tmp_path, iterations_per_step=2)
    first = TensorBoardSink(per_iteration=True)
    first.open(run)
    for step in (1, 2):
        for update in (2 * step - 1, 2 * step):
            first.write_iteration(update, {"loss": float(update)})
        first.write(step, {"loss": 0.5})
    resumed = TensorBoardSink(per_iteration=True)
    resumed.open(attrs.evolve(run, resumed_step=1, start=2))
    assert resumed.rewind(1) == [2]
    resumed.write_iteration(3, {"loss": 30.0})
    resumed.write(2, {"loss": 5.0})

    updates = EventAccumulator(str(tmp_path / "tensorboard" / "iterations")).Reload().Scalars("loss")
    assert [(event.step, event.value) for event in updates] == [(1, 1.0), (2, 2.0), (3, 30.0)]
    assert scalars(tmp_path, "loss") == [(1, 0.5), (2, 5.0)]
