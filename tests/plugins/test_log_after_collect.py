"""log_after_collect on the fake bus."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path

import attrs
import pytest

from helpers.config_yaml import BASE
from hooktrainer import build_trainer, load_config
from hooktrainer.errors import ConfigError, MissingMetricError
from hooktrainer.events import FitEnd, FitStart, IterationEnd, Status, StepEnd
from hooktrainer.metrics import STEP_KEY
from hooktrainer.ports import RunInfo
from hooktrainer.sinks.jsonl import JsonlSink
from hooktrainer.testing import FakeBus, FakeRewindableSink, FakeRunState, FakeSink, check_plugin
from hooktrainer_plugins.log_after_collect import LogAfterCollect


@attrs.define
class BrokenSink(FakeSink):
    """A sink that fails in `write` or in `close`."""

    calls: int = 0

    def write(self, step: int, row: object) -> None:
        self.calls += 1
        raise OSError("disk full")

    def close(self, status: Status) -> None:
        super().close(status)
        raise OSError("disk full")


def started(*sinks: FakeSink, directory: Path | None = None, run: FakeRunState | None = None) -> FakeBus:
    run = run or FakeRunState(directory=directory)
    bus = FakeBus(LogAfterCollect(sinks=sinks, run=run), provides=["metrics.row"])
    bus.fire(FitStart)
    return bus


def test_plugin_passes_check_plugin() -> None:
    check_plugin(LogAfterCollect)


def test_sealed_row_of_each_step_is_written_once() -> None:
    bus = started(sink := FakeSink())

    bus.fire(StepEnd, step=1, row={"loss": 2.5})
    bus.fire(StepEnd, step=2, row={"loss": 6.5})

    assert sink.rows == [(1, {"loss": 2.5, STEP_KEY: 1}), (2, {"loss": 6.5, STEP_KEY: 2})]


@pytest.mark.parametrize("row", [{"loss": 2.5}, {"loss": 2.5, STEP_KEY: 7.0}])
def test_a_row_has_its_integer_step_under_the_key_of_verl(row: dict[str, float], tmp_path: Path) -> None:
    bus = started(sink := FakeSink(), JsonlSink(), directory=tmp_path)

    bus.fire(StepEnd, step=3, row=row)
    bus.fire(FitEnd, step=4, status="failed", row=row)

    written = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    for found in ([found for _, found in sink.rows], written):
        assert [(found[STEP_KEY], type(found[STEP_KEY])) for found in found] == [(3, int), (4, int)]
    with pytest.raises(MissingMetricError, match="has no 'los'. Did you mean 'loss'"):
        sink.rows[0][1]["los"]


@attrs.define
class OtherAxis(FakeSink):
    """Plots against a key of its own."""

    step_key: str = "trainer/global_step"


def test_a_sink_that_expects_another_step_key_is_refused_before_any_sink_is_opened() -> None:
    message = (
        r"the sink OtherAxis expects the step of a row under 'trainer/global_step', and rows have it under "
        r"'training/global_step'"
    )
    bus = FakeBus(
        LogAfterCollect(sinks=(first := FakeSink(), OtherAxis()), run=FakeRunState()), provides=["metrics.row"]
    )
    with pytest.raises(ConfigError, match=message):
        bus.fire(FitStart)
    assert first.state == "new"


SINK = """
import attrs

@attrs.define
class Sink:
    step_key = "global_step"

    def open(self, run):
        pass

    def write(self, step, row):
        pass

    def close(self, status):
        pass
"""


def test_a_configured_sink_that_expects_another_step_key_is_refused_before_the_run_directory_changes(
    tmp_path: Path,
) -> None:
    (tmp_path / "sink.py").write_text(SINK, encoding="utf-8")
    plugins = "plugins: [metric_aggregation, weight_sync, {use: log_after_collect, sinks: [jsonl, 'sink.py:Sink']}]"
    path = tmp_path / "run.yaml"
    path.write_text(f"{BASE}{plugins}\nrun: {{dir: '{tmp_path / 'runs'}'}}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="the sink Sink expects the step of a row under 'global_step'"):
        build_trainer(load_config(path))
    assert not (tmp_path / "runs").exists()


def test_an_empty_row_is_not_written() -> None:
    bus = started(sink := FakeSink())

    bus.fire(StepEnd, step=1)

    assert sink.rows == []


def test_a_step_that_was_not_reported_is_written_at_the_end_before_sinks_close() -> None:
    bus = started(sink := FakeSink())

    bus.fire(FitEnd, step=3, status="failed", row={"loss": 1.0, "training/unscored": 1.0})

    assert sink.rows == [(3, {"loss": 1.0, "training/unscored": 1.0, STEP_KEY: 3})]
    assert sink.state == "closed"


def test_a_failing_critical_sink_ends_the_run_and_neither_drops_nor_repeats_rows_of_other_sinks() -> None:
    bus = started(first := FakeSink(), BrokenSink(critical=True), last := FakeSink(), run=(run := FakeRunState()))

    with pytest.raises(OSError, match="disk full"):
        bus.fire(StepEnd, step=1, row={"loss": 1.0})
    with pytest.raises(OSError, match="disk full"):
        bus.fire(FitEnd, step=1, status="failed", row={"loss": 1.0})

    assert first.rows == last.rows == [(1, {"loss": 1.0, STEP_KEY: 1})]
    assert {first.state, last.state} == {"closed"}
    assert run.dropped_sinks == []


def test_another_failing_sink_is_dropped_with_one_warning_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    bus = started(broken := BrokenSink(), good := FakeSink(), run=(run := FakeRunState()))

    with caplog.at_level(logging.WARNING):
        for step in (1, 2):
            bus.fire(StepEnd, step=step, row={"loss": 1.0})
        bus.fire(FitEnd, step=2, status="completed")

    assert [record.getMessage() for record in caplog.records] == [
        "the sink BrokenSink failed and is dropped; the run continues without it: OSError: disk full"
    ]
    assert (run.dropped_sinks, broken.calls, broken.status) == (["BrokenSink"], 1, "completed")
    assert [step for step, _ in good.rows] == [1, 2]


class Unreachable(FakeRewindableSink):
    def open(self, run: RunInfo) -> None:
        raise ConnectionError("the server is down")

    def rewind(self, step: int) -> list[int]:
        raise AssertionError("the sink is not open")


class Uninstalled(FakeSink):
    def open(self, run: RunInfo) -> None:
        raise ConfigError("it is not installed")


def test_a_sink_that_cannot_be_opened_is_dropped_unless_its_configuration_is_wrong() -> None:
    bus = resumed(run := FakeRunState(), Unreachable(), sink := FakeRewindableSink(), step=3)
    bus.fire(StepEnd, step=4, row={"loss": 1.0})

    assert (run.dropped_sinks, [step for step, _ in sink.rows]) == (["Unreachable"], [4])
    with pytest.raises(ConfigError, match="it is not installed"):
        started(Uninstalled())


@attrs.define
class EveryUpdate(FakeSink):
    """A sink that writes every update."""

    per_iteration: bool = True
    updates: list[tuple[int, dict[str, object], int]] = attrs.field(factory=list)

    def write_iteration(self, iteration: int, row: Mapping[str, object]) -> None:
        self.updates.append((iteration, dict(row), len(self.rows)))


def test_updates_are_written_with_their_number_once_their_step_is_complete() -> None:
    bus = started(
        sink := EveryUpdate(), off := EveryUpdate(per_iteration=False), run=FakeRunState(iterations_per_step=2)
    )

    for step in (1, 2):
        for iteration in (0, 1):
            metrics = {"loss": step + 0.5 * iteration, "lengths": [1.0, 3.0], "empty": []}
            bus.fire(IterationEnd, step=step, iteration=iteration, metrics=metrics)
        assert len(sink.updates) == 2 * (step - 1)
        bus.fire(StepEnd, step=step, row={"loss": 9.0})
    bus.fire(IterationEnd, step=3, iteration=0, metrics={"loss": 7.0})
    bus.fire(FitEnd, step=2, status="interrupted")

    assert sink.updates == [
        (2 * step + iteration - 1, {"loss": step + 0.5 * iteration, "lengths": 2.0, STEP_KEY: step}, step - 1)
        for step in (1, 2)
        for iteration in (0, 1)
    ]
    assert off.updates == []


def test_sinks_are_told_the_run_and_how_it_ended(tmp_path: Path) -> None:
    bus = started(sink := FakeSink(), run=FakeRunState(directory=tmp_path, total_steps=4))
    bus.fire(FitEnd, step=1, status="interrupted")

    assert sink.run == RunInfo(directory=tmp_path, total_steps=4)
    assert sink.status == "interrupted"


def resumed(run: FakeRunState, *sinks: object, step: int) -> FakeBus:
    run.resume, run.step = "auto", step
    bus = FakeBus(LogAfterCollect(sinks=sinks, run=run), provides=["metrics.row"])
    bus.fire(FitStart)
    return bus


class Forward(FakeSink):
    """A sink that accepts any row and cannot delete rows."""

    def write(self, step: int, row: object) -> None:
        self.rows.append((step, row))


@pytest.mark.parametrize("with_jsonl", [True, False])
def test_resumed_run_replaces_the_rows_after_its_checkpoint_and_logs_it_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, with_jsonl: bool
) -> None:
    def sinks() -> tuple[object, ...]:
        return (JsonlSink(), forward) if with_jsonl else (forward,)

    forward, run = Forward(), FakeRunState(directory=tmp_path)
    bus = resumed(run, *sinks(), step=0)
    for step in range(1, 7):
        bus.fire(StepEnd, step=step, row={"run": 1.0})
    assert not caplog.records

    with caplog.at_level(logging.WARNING):
        bus = resumed(run, *sinks(), step=4)
        for step in range(5, 9):
            bus.fire(StepEnd, step=step, row={"run": 2.0})

    if with_jsonl:
        rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
        assert [(row["step"], row["run"]) for row in rows] == [(s, 1.0) for s in (1, 2, 3, 4)] + [
            (s, 2.0) for s in (5, 6, 7, 8)
        ]
    repeated = "2 steps (5-6) after the checkpoint of step 4"
    assert [record.getMessage() for record in caplog.records] == [
        *([f"{repeated} are run again; their rows are replaced"] if with_jsonl else []),
        f"Forward cannot delete rows: {repeated} will appear in it twice",
    ]


def test_repeated_steps_are_counted_across_several_interruptions(caplog: pytest.LogCaptureFixture) -> None:
    forward, run = Forward(), FakeRunState()
    for begins, ends in ((0, 6), (4, 5)):
        bus = resumed(run, forward, step=begins)
        for step in range(begins + 1, ends + 1):
            bus.fire(StepEnd, step=step, row={"a": 1.0})
    caplog.clear()

    resumed(run, forward, step=4)

    assert "2 steps (5-6) after the checkpoint of step 4" in caplog.text


def test_incomplete_row_of_a_killed_run_is_removed_on_resume(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "a": 1}\n{"step": 2, "a"')
    bus = resumed(FakeRunState(directory=tmp_path), JsonlSink(), step=1)
    bus.fire(StepEnd, step=2, row={"a": 2.0})

    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert rows == [{"step": 1, "a": 1}, {"step": 2, "a": 2.0, STEP_KEY: 2}]


def test_a_sink_with_files_needs_a_run_directory() -> None:
    with pytest.raises(ConfigError, match=r"this run has no directory to write to; pass RunPlace\(directory="):
        started(JsonlSink())
