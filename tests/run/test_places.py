"""Where a run writes, where it looks for a checkpoint, and what is said about it."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import attrs
import pytest

from hooktrainer import build_trainer, load_config
from hooktrainer.cli import main

SMALL = """
task: {use: sort_digits, digits: 3}
model: {use: decoder, layers: 1, width: 16, heads: 2}
rollout: {use: inline, n: 2, max_response_length: 4}
trainer: {total_steps: 1, train_batch_size: 4, ppo_mini_batch_size: 4}
run: {dir: ckpt}
plugins:
  - metric_aggregation
  - weight_sync
  - mine.py:Mine
  - {use: log_after_collect, sinks: [jsonl, "mine.py:Sink"]}
  - checkpoint
"""
MINE = """
import attrs
from hooktrainer import Plugin, on, state
from hooktrainer.events import StepEnd
from hooktrainer.sinks.jsonl import JsonlSink

@attrs.define
class Sink(JsonlSink):
    @property
    def path(self):
        return self.directory / "mine.jsonl"

@attrs.define(kw_only=True)
class Mine(Plugin):
    count: int = state(0)

    @on(StepEnd)
    def count_it(self, event: StepEnd) -> None:
        self.count += 1
"""


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    for name in "abc":
        (tmp_path / name).mkdir()
    (tmp_path / "a" / "run.yaml").write_text(SMALL)
    (tmp_path / "a" / "mine.py").write_text(MINE)
    return tmp_path


def said(caplog: pytest.LogCaptureFixture) -> str:
    return "\n".join(record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING)


def test_the_absolute_run_directory_is_printed_and_auto_reports_where_it_found_nothing(
    folders: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(folders / "b")
    assert main(["fit", "../a/run.yaml"]) == 0
    assert f"run directory: {folders}/b/ckpt/run\n" in capsys.readouterr().out
    assert said(caplog) == ""

    monkeypatch.chdir(folders / "c")
    assert main(["fit", "../a/run.yaml", "run.resume=auto"]) == 0
    assert f"run directory: {folders}/c/ckpt/run\n" in capsys.readouterr().out
    assert f"there is no checkpoint in {folders}/c/ckpt/run/checkpoints: a new run begins" in said(caplog)


def test_a_moved_run_directory_resumes_without_a_report_of_other_settings(
    folders: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(folders / "a")
    assert main(["fit", "run.yaml"]) == 0
    shutil.move(folders / "a", folders / "moved")
    monkeypatch.chdir(folders / "moved")

    assert main(["fit", "run.yaml", "run.resume=auto", "trainer.total_steps=2", "optim.lr=0.5"]) == 0
    assert "resuming from step 1" in said(caplog)
    assert "changed settings: optim.lr" in said(caplog)
    assert ".py" not in said(caplog)


def test_of_a_moved_run_only_the_class_that_is_read_from_another_file_is_another_setting(
    folders: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(folders / "a")
    assert main(["fit", "run.yaml"]) == 0
    shutil.move(folders / "a", folders / "moved")
    monkeypatch.chdir(folders / "moved")
    shutil.copy("mine.py", "ours.py")
    Path("run.yaml").write_text(SMALL.replace("mine.py:Sink", "ours.py:Sink"))

    assert main(["fit", "run.yaml", "run.resume=auto", "trainer.total_steps=2"]) == 0
    assert "ours.py:Sink" in said(caplog)
    assert "mine.py:Mine" not in said(caplog)


@pytest.mark.parametrize("resume", [False, True])
def test_a_run_stays_in_its_directory_if_the_script_changes_the_working_directory(
    resume: bool, folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folders / "a")
    if resume:
        assert main(["fit", "run.yaml"]) == 0
    config = load_config("run.yaml", overrides=["trainer.total_steps=2", *(["run.resume=auto"] if resume else [])])
    trainer = build_trainer(attrs.evolve(config, run=attrs.evolve(config.run, dir=Path("ckpt"))))
    monkeypatch.chdir(folders / "b")
    trainer.fit()

    assert len((folders / "a/ckpt/run/metrics.jsonl").read_text().splitlines()) == 2
    assert (folders / "a/ckpt/run/checkpoints/step_00000002").is_dir()
    assert not any((folders / "b").iterdir())
