"""Whole runs from the command line, on the real model and engines, small enough to take a second."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from hooktrainer import build_trainer, load_config
from hooktrainer.cli import main
from hooktrainer.errors import NonFiniteError, PlanError
from hooktrainer.run.loading import ConfigWarning

SMALL = """
task: {use: sort_digits, digits: 3}
model: {use: decoder, layers: 1, width: 16, heads: 2}
rollout: {use: ENGINE, n: 4, max_response_length: 4}
optim: {lr: 1e-3}
trainer: {total_steps: 3, train_batch_size: 8, ppo_mini_batch_size: 4, parameter_sync_step: 2}
plugins:
  - metric_aggregation
  - weight_sync
  - {use: staleness, max_off_policy_threshold: 2}
  - {use: validation, every: 2, size: 16}
  - {use: log_after_collect, sinks: [console, jsonl]}
"""


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for engine in ("inline", "thread"):
        (tmp_path / f"{engine}.yaml").write_text(SMALL.replace("ENGINE", engine))
    return tmp_path


def rows(run: str) -> list[dict[str, float]]:
    return [json.loads(line) for line in Path("runs", run, "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("engine", ["inline", "thread"])
def test_run_writes_its_config_its_plan_and_one_row_per_step(engine: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", f"{engine}.yaml", "trainer.num_warmup_batches=1"]) == 0

    assert sorted(path.name for path in Path("runs", engine).iterdir()) == [
        "config.yaml",
        "metrics.jsonl",
        "plan.txt",
        "run.json",
    ]
    assert [row["step"] for row in rows(engine)] == [1, 2, 3]
    assert ["val/score/mean" in row for row in rows(engine)] == [False, True, True]
    assert [row["training/off_policy/staleness/mean"] for row in rows(engine)] == [1.0, 1.5, 1.5]
    assert rows(engine)[0]["perf/throughput"] > 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[-2].startswith("completed (all 3 steps are done): 3 steps in ")
    assert printed[-2].endswith(f"kept in runs/{engine}")
    assert printed[-1] == f"report: hooktrainer report runs/{engine}"
    assert len([line for line in printed if line.startswith("step")]) == 3
    again = load_config(Path("runs", engine, "config.yaml"))
    assert again == load_config(f"{engine}.yaml", overrides=["trainer.num_warmup_batches=1", f"run.name={engine}"])
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("rollout")]


def test_synchronous_run_is_reproducible_and_has_staleness_1() -> None:
    finals = []
    for _ in range(2):
        trainer = build_trainer(load_config("inline.yaml"))
        trainer.fit()
        finals.append({name: tensor.clone() for name, tensor in trainer.ports.learner.weights().items()})

    assert all(torch.equal(finals[0][name], finals[1][name]) for name in finals[0])
    first, second = rows("inline"), rows("inline.1")
    timed = ("timing", "perf/")
    for row, other in zip(first, second, strict=True):
        assert row["training/off_policy/staleness/max"] == 1
        assert {k: v for k, v in row.items() if not k.startswith(timed)} == {
            k: v for k, v in other.items() if not k.startswith(timed)
        }


def test_second_run_renames_the_directory_of_the_first_and_logs_it_once(caplog: pytest.LogCaptureFixture) -> None:
    main(["fit", "inline.yaml", "seed=1", "trainer.total_steps=1"])
    main(["fit", "inline.yaml", "seed=2", "trainer.total_steps=1"])

    assert "seed: 1" in Path("runs/inline.1/config.yaml").read_text()
    assert "seed: 2" in Path("runs/inline/config.yaml").read_text()
    assert sum("renamed to inline.1" in record.getMessage() for record in caplog.records) == 1


def test_end_of_the_data_completes_the_last_step() -> None:
    assert main(["fit", "thread.yaml", "task.size=18", "trainer.total_steps=null"]) == 0

    assert [row["step"] for row in rows("thread")] == [1, 2, 3]
    assert rows("thread")[-1]["training/partial_iterations"] == 1
    assert rows("thread")[-1]["val/score/mean"] >= 0


def test_step_may_span_two_epochs() -> None:
    assert main(["fit", "inline.yaml", "task.size=8", "trainer.total_epochs=2", "trainer.total_steps=null"]) == 0

    assert [row["step"] for row in rows("inline")] == [1, 2]


BAD = {
    "paramter_sync_step: 2": "did you mean",
    "trainer: {total_steps: 3, train_batch_size: 9, ppo_mini_batch_size: 4, parameter_sync_step: 2}": "9",
    "plugins: [weight_snc]": "weight_sync",
    "plugins: [{use: weight_sync, priority: {step_ned: 300}}]": "step_end",
    "plugins: [metric_aggregation]": "exactly one handler that syncs the weights",
    "plugins: []": "exactly one handler that syncs the weights",
    "plugins: [weight_sync, weight_sync]": "a run has only one weight_sync",
    "rollout: {use: thread, n: many}": "rollout.n",
    "task: {use: sort_digits, digts: 3}": "digits",
    "plugins: [weight_sync, {use: staleness, max_off_policy_threshold: 1}]\n"
    "trainer: {num_warmup_batches: 1}": "num_warmup_batches = 1",
}


@pytest.mark.parametrize("bad", list(BAD), ids=[line.partition("\n")[0][:40] for line in BAD])
def test_invalid_config_exits_2_with_a_reason_and_creates_no_run(bad: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("bad.yaml").write_text(bad + "\n")

    assert main(["fit", "inline.yaml", "bad.yaml"]) == 2

    said = capsys.readouterr().err
    assert BAD[bad].lower() in said.lower()
    assert "Traceback" not in said
    assert not Path("runs").exists()


def test_run_without_weight_sync_is_refused_before_components_are_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hooktrainer.run.build._ports", lambda *_: pytest.fail("something was built"))

    with pytest.warns(ConfigWarning):
        config = load_config("inline.yaml", overrides=["plugins=[]"])
    with pytest.raises(PlanError, match="exactly one handler that syncs"):
        build_trainer(config)


@pytest.mark.parametrize("command", ["plan", "fit"])
def test_both_commands_show_the_faults_of_all_phases(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    faults = ["task.digts=4", "trainer.train_batch_size=9", "plugins.validation.evry=3", "plugins.0.priority={a: 300}"]

    assert main([command, "inline.yaml", *faults]) == 2

    heading, *lines = capsys.readouterr().err.splitlines()
    assert heading == "4 faults on the command line:"
    assert [line.split()[0] for line in lines] == [
        "task.digts", "trainer.train_batch_size", "plugins[0].priority.a", "plugins[3].evry"
    ]  # fmt: skip


def test_run_dir_that_cannot_be_created_exits_2(capsys: pytest.CaptureFixture[str]) -> None:
    Path("file").write_text("")

    assert main(["fit", "inline.yaml", "run.dir=file/below"]) == 2

    assert "cannot be created" in capsys.readouterr().err


def no_number(rewards: torch.Tensor) -> torch.Tensor:
    return torch.full_like(rewards, float("nan"))


def test_non_finite_loss_fails_the_run_before_the_update_with_one_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("hooktrainer.algorithms.advantages.grpo", no_number)
        assert main(["fit", "inline.yaml"]) == 1

    said = capsys.readouterr().err
    assert said.startswith("0 steps complete, kept in runs/inline\nthe run failed: actor/pg_loss is nan: no update")
    assert "Traceback" not in said
    assert rows("inline") == []
    assert main(["fit", "inline.yaml", "trainer.total_steps=1"]) == 0


def test_non_finite_update_leaves_the_weights_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hooktrainer.algorithms.advantages.grpo", no_number)
    trainer = build_trainer(load_config("inline.yaml"))
    before = {name: tensor.clone() for name, tensor in trainer.ports.learner.weights().items()}

    with pytest.raises(NonFiniteError):
        trainer.fit()

    assert all(torch.equal(before[name], tensor) for name, tensor in trainer.ports.learner.weights().items())


@pytest.mark.parametrize("score", ["nan", "inf", "None", "'0.5'", "[1]"])
def test_invalid_score_is_reported_with_its_answer(score: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("odd.py").write_text(
        "import attrs\nfrom math import inf, nan\nfrom hooktrainer.tasks.sort_digits import SortDigits\n\n"
        f"@attrs.frozen(kw_only=True)\nclass Odd(SortDigits):\n    def grade(self, *_):\n        return {score}\n"
    )

    assert main(["fit", "inline.yaml", "task.use=odd.py:Odd"]) == 1

    said = capsys.readouterr().err
    assert f"Odd.score returned {score} for the answer" in said
    assert "expected a finite number" in said


@pytest.mark.parametrize(("code", "exits"), [("0", 1), ("", 1), ("3", 3)])
def test_plugin_that_calls_sys_exit_fails_the_run_and_is_named(
    code: str, exits: int, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("leaver.py").write_text(
        "import sys\nimport attrs\nfrom hooktrainer import Plugin, on\nfrom hooktrainer.events import StepStart\n\n"
        "@attrs.define\nclass Leaver(Plugin):\n    @on(StepStart)\n"
        f"    def start(self, event: StepStart) -> None:\n        sys.exit({code})\n"
    )
    Path("more.yaml").write_text("plugins: [weight_sync, 'leaver.py:Leaver']\n")

    assert main(["fit", "inline.yaml", "more.yaml"]) == exits

    assert "raised by plugin 'leaver' (plugins[1]): Leaver.start on step_start" in capsys.readouterr().err


def test_plugin_that_calls_sys_exit_on_import_is_a_fault(capsys: pytest.CaptureFixture[str]) -> None:
    Path("leaver.py").write_text("import sys\nsys.exit(0)\n")
    Path("more.yaml").write_text("plugins: [weight_sync, 'leaver.py:Leaver']\n")

    assert main(["fit", "inline.yaml", "more.yaml"]) == 2

    assert "plugins[1]" in capsys.readouterr().err


def test_second_run_with_the_name_of_an_active_run_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    first = build_trainer(load_config("inline.yaml"))

    assert main(["fit", "inline.yaml"]) == 2
    assert "another run is using" in capsys.readouterr().err

    first.fit()
    assert main(["fit", "inline.yaml"]) == 0


def test_too_few_held_out_prompts_are_refused_before_the_first_step(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "inline.yaml", "plugins.validation.size=5000"]) == 2

    said = capsys.readouterr().err
    assert "plugins[3]: size is 5000, and the task has 125 held-out prompts" in said
    assert "0 steps complete" in said


def test_override_longer_than_the_path_limit_is_accepted() -> None:
    plugins = ", ".join(["metric_aggregation", "weight_sync", *(f"{{use: validation, name: v{i}}}" for i in range(9))])

    assert main(["plan", "inline.yaml", f"plugins=[{plugins}]"]) == 0


def test_plugin_file_is_found_relative_to_the_yaml(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.py").write_text(
        "import attrs\nfrom hooktrainer import Plugin, Priority, on\nfrom hooktrainer.events import StepEnd\n\n"
        "@attrs.define\nclass StopAt(Plugin):\n    '''Stops.'''\n\n    step: int = 1\n    '''When.'''\n\n"
        "    @on(StepEnd, priority=Priority.REPORT, needs=['metrics.row'])\n"
        "    def stop(self, event: StepEnd) -> None:\n"
        "        if event.step == self.step:\n            event.control.stop('that is enough')\n"
    )
    Path("more.yaml").write_text(
        "plugins: [metric_aggregation, weight_sync, {use: 'mine.py:StopAt', step: 2}, log_after_collect]\n"
    )

    assert main(["fit", "inline.yaml", "more.yaml"]) == 0

    assert "stopped (that is enough): 2 steps" in capsys.readouterr().out


def test_an_error_in_a_plugin_keeps_its_traceback_and_names_the_plugin(capsys: pytest.CaptureFixture[str]) -> None:
    Path("broken.py").write_text(
        "import attrs\nfrom hooktrainer import Plugin, on\nfrom hooktrainer.events import StepStart\n\n"
        "@attrs.define\nclass Broken(Plugin):\n    '''Breaks.'''\n\n    @on(StepStart)\n"
        "    def start(self, event: StepStart) -> None:\n        raise ValueError('boom')\n"
    )
    Path("more.yaml").write_text("plugins: [weight_sync, 'broken.py:Broken']\n")

    assert main(["fit", "inline.yaml", "more.yaml"]) == 1

    said = capsys.readouterr().err
    assert "in start\n    raise ValueError('boom')" in said
    assert "raised by plugin 'broken' (plugins[1]): Broken.start on step_start, COLLECT 200, step 1" in said


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_signal_ends_the_run_with_complete_rows(number: signal.Signals, code: int) -> None:
    command = [sys.executable, "-u", "-m", "hooktrainer", "fit", "thread.yaml", "trainer.total_steps=1000000"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ})
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("step"):
            process.send_signal(number)
            break
    _, said = process.communicate(timeout=30)

    assert process.returncode == code
    assert "complete, kept in runs/thread" in said
    assert said.endswith("interrupted\n" if number == signal.SIGINT else "terminated\n")
    assert [row["step"] for row in rows("thread")] == list(range(1, len(rows("thread")) + 1))


@pytest.mark.parametrize("option", ["model.device", "rollout.device"])
def test_a_run_refused_while_it_is_built_names_the_override_and_no_directory(
    option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fit", "inline.yaml", f"{option}=nodevice"]) == 2

    out, err = capsys.readouterr()
    assert f"{option}=nodevice" in err
    assert "run directory" not in out
    assert not Path("runs").exists()
