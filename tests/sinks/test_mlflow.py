"""The MLflow sink, read back with MLflow's own client."""

from __future__ import annotations

import json
import math
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from hooktrainer.events import FitEnd, FitStart, StepEnd
from hooktrainer.metrics import STEP_KEY
from hooktrainer.ports import RunInfo
from hooktrainer.sinks.mlflow import MlflowSink
from hooktrainer.testing import FakeBus, FakeRunState, FakeSink, check_sink
from hooktrainer_plugins.log_after_collect import LogAfterCollect

pytest.importorskip("mlflow")
pytest.importorskip("sqlalchemy")
pytestmark = [
    pytest.mark.slow,  # a new database takes seconds
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # connections of MLflow's pool
]
CONFIG = {"seed": 3, "optim": {"lr": 0.5}, "plugins": [{"use": "staleness", "note": "x" * 7000}]}


@pytest.fixture(autouse=True)
def _no_telemetry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")


def client_of(run: Path) -> Any:
    from mlflow.tracking import MlflowClient

    return MlflowClient(tracking_uri=f"sqlite:///{run / 'mlflow.db'}")


def runs(run: Path) -> list[Any]:
    """Return the runs of the experiment, oldest first."""
    client = client_of(run)
    experiment = client.get_experiment_by_name("hooktrainer")
    return client.search_runs([experiment.experiment_id], order_by=["attributes.start_time ASC"])


def history(run: Path, key: str) -> list[tuple[int, float]]:
    """Return the values of a metric in the newest run."""
    found = client_of(run).get_metric_history(runs(run)[-1].info.run_id, key)
    return [(point.step, point.value) for point in found]


def opened(directory: Path, step: int = 0, start: int = 1) -> MlflowSink:
    sink = MlflowSink()
    sink.open(RunInfo(directory=directory, name="mine", id="3f2a", config=CONFIG, resumed_step=step, start=start))
    return sink


def test_mlflow_passes_check_sink() -> None:
    check_sink(MlflowSink, steps=lambda run: [step for step, _ in history(run, "critic/score/mean")])


def test_values_configuration_and_end_are_read_back(tmp_path: Path) -> None:
    sink = opened(tmp_path)
    sink.write(1, {"loss": 0.5, STEP_KEY: 1, "staleness": {3.0: 1.0, 1.0: 4.0}, "val/pass@4": 0.25})
    sink.write(2, {"loss": math.nan, STEP_KEY: 2})
    sink.close("failed")

    (run,) = runs(tmp_path)
    assert (run.info.run_name, run.info.status, run.data.tags["hooktrainer.group"]) == ("mine", "FAILED", "mine-3f2a")
    params = {"seed": "3", "optim.lr": "0.5", "plugins.staleness.use": "staleness"}
    assert run.data.params == {**params, "plugins.staleness.note": "x" * 6000}
    assert run.data.metrics.keys() == {"loss", STEP_KEY, "val/pass_4"}
    (first, second) = history(tmp_path, "loss")
    assert (first, second[0], math.isnan(second[1])) == ((1, 0.5), 2, True)


def test_local_updates_have_an_axis_of_their_own(tmp_path: Path) -> None:
    sink = MlflowSink(per_iteration=True)
    sink.open(RunInfo(directory=tmp_path))
    for update in (1, 2):
        sink.write_iteration(update, {"loss": float(update)})
    sink.write(1, {"loss": 0.5})

    assert history(tmp_path, "iteration/loss") == [(1, 1.0), (2, 2.0)]
    assert history(tmp_path, "loss") == [(1, 0.5)]


class Dying(BaseHTTPRequestHandler):
    """A tracking server that makes a run and then closes every connection."""

    answers: ClassVar[dict[str, object]] = {
        "/health": {},
        "/version": {},
        "/experiments/get-by-name": {"experiment": {"experiment_id": "0"}},
        "/runs/create": {"run": {"info": {"run_id": "1"}, "data": {}}},
    }

    def do_GET(self) -> None:
        known = [value for path, value in self.answers.items() if self.path.partition("?")[0].endswith(path)]
        if known:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(known[0]).encode())
        else:
            self.close_connection = True

    do_POST = do_GET

    def log_message(self, *_: object) -> None: ...


def test_a_server_that_dies_during_the_run_is_dropped(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    with HTTPServer(("127.0.0.1", 0), Dying) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            tracked = MlflowSink(tracking_uri=f"http://127.0.0.1:{server.server_port}")
            run = FakeRunState(directory=tmp_path)
            bus = FakeBus(LogAfterCollect(sinks=[tracked, sink := FakeSink()], run=run), provides=["metrics.row"])
            bus.fire(FitStart)
            assert run.dropped_sinks == []
            bus.fire(StepEnd, step=1, row={"loss": 0.5})
            bus.fire(FitEnd, step=1, status="completed")
        finally:
            server.shutdown()
            thread.join()

    assert run.dropped_sinks == ["MlflowSink"]
    assert caplog.text.count("MlflowSink failed and is dropped") == 1
    assert [step for step, _ in sink.rows] == [1]


def test_a_server_that_is_down_is_dropped_at_the_start(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    down, run = MlflowSink(tracking_uri="http://127.0.0.1:9"), FakeRunState(directory=tmp_path)
    bus = FakeBus(LogAfterCollect(sinks=[down, sink := FakeSink()], run=run), provides=["metrics.row"])
    bus.fire(FitStart)
    bus.fire(StepEnd, step=1, row={"loss": 0.5})

    assert run.dropped_sinks == ["MlflowSink"]
    assert "Connection refused" in caplog.text
    assert [step for step, _ in sink.rows] == [1]
