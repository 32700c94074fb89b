"""profiler on the fake bus and in a run: which steps have a profile, and what is in it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from hooktrainer.cli import main
from hooktrainer.events import FitEnd, StepEnd, StepStart
from hooktrainer.testing import FakeBus, FakeRunState, check_plugin
from hooktrainer_plugins.profiler import Profiler


def names(path: Path) -> set[str]:
    """Return the names of all operators of a profile."""
    return {event["name"] for event in json.loads(path.read_text())["traceEvents"] if event.get("cat") == "cpu_op"}


def test_plugin_passes_check_plugin() -> None:
    check_plugin(Profiler)


def test_a_profile_has_the_operators_of_its_step_only(tmp_path: Path) -> None:
    bus = FakeBus(Profiler(steps=[2], run=FakeRunState(directory=tmp_path)))
    for step, operator in enumerate([torch.sin, torch.cos, torch.tanh], start=1):
        bus.fire(StepStart, step=step)
        operator(torch.ones(2))
        bus.fire(StepEnd, step=step)
    bus.fire(FitEnd, step=3)

    assert [path.name for path in tmp_path.iterdir()] == ["profile_step_2.json"]
    assert names(tmp_path / "profile_step_2.json") & {"aten::sin", "aten::cos", "aten::tanh"} == {"aten::cos"}


def test_a_step_that_does_not_end_is_profiled_until_the_end_of_the_run(tmp_path: Path) -> None:
    bus = FakeBus(Profiler(steps=[1], run=FakeRunState(directory=tmp_path)))
    bus.fire(StepStart, step=1)
    torch.ones(2).sin()
    bus.fire(FitEnd, status="failed", step=0)

    assert "aten::sin" in names(tmp_path / "profile_step_1.json")


def test_a_file_that_cannot_be_written_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "profile_step_1.json").mkdir()
    bus = FakeBus(Profiler(steps=[1], run=FakeRunState(directory=tmp_path)))
    bus.fire(StepStart, step=1)
    bus.fire(StepEnd, step=1)

    assert "the profile of step 1 cannot be written" in caplog.text


def test_a_run_has_a_profile_of_its_updates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text(
        "task: {use: sort_digits, digits: 3}\n"
        "model: {use: decoder, layers: 1, width: 16, heads: 2}\n"
        "rollout: {use: thread, n: 2, max_response_length: 4}\n"
        "trainer: {total_steps: 2, train_batch_size: 4, ppo_mini_batch_size: 2, parameter_sync_step: 2}\n"
        "plugins: [metric_aggregation, weight_sync, {use: profiler, steps: [1]}]\n"
    )

    assert main(["fit", "run.yaml"]) == 0
    assert [path.name for path in Path("runs", "run").glob("profile*")] == ["profile_step_1.json"]
    found = names(Path("runs", "run", "profile_step_1.json"))
    assert any("Backward" in name for name in found)
    assert "aten::embedding" in found


@pytest.mark.parametrize("steps", [[0], ["2"], [1.5]])
def test_invalid_steps_are_refused(steps: list[object]) -> None:
    with pytest.raises((ValueError, TypeError)):
        Profiler(steps=steps)
