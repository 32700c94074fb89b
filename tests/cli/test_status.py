"""A run is watched and ended from another process."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import attrs
import pytest

from hooktrainer import build_trainer
from hooktrainer.cli import main
from hooktrainer.run.loading import config_from_mapping
from hooktrainer.run.record import FILE, RunRecord, Start

SCRIPT = """
import sys, threading
from pathlib import Path
from hooktrainer import Plugin, Priority, build_trainer, on
from hooktrainer.events import StepEnd
from hooktrainer.run.loading import config_from_mapping
import attrs

@attrs.define(kw_only=True)
class Say(Plugin):
    @on(StepEnd, priority=Priority.SAVE + 50)
    def say(self, event):
        print(event.step, flush=True)
        if event.step == 2:
            threading.Event().wait()

config = config_from_mapping({
    "task": {"use": "sort_digits", "digits": 3},
    "model": {"use": "decoder", "layers": 1, "width": 16, "heads": 2},
    "rollout": {"use": "inline", "n": 4, "max_response_length": 4},
    "trainer": {"total_steps": 9, "train_batch_size": 4, "ppo_mini_batch_size": 4},
    "plugins": ["metric_aggregation", "weight_sync", {"use": "log_after_collect", "sinks": ["jsonl"]},
                {"use": "__main__:Say"}],
    "run": {"name": "watched"},
})
build_trainer(config).fit()
"""


def trained(steps: int = 2, **run: object) -> None:
    data = {
        "task": {"use": "sort_digits", "digits": 3},
        "model": {"use": "decoder", "layers": 1, "width": 16, "heads": 2},
        "rollout": {"use": "inline", "n": 4, "max_response_length": 4},
        "trainer": {"total_steps": steps, "train_batch_size": 4, "ppo_mini_batch_size": 4},
        "plugins": [
            "metric_aggregation",
            "weight_sync",
            "checkpoint",
            {"use": "log_after_collect", "sinks": ["jsonl"]},
        ],
        "run": {"name": "done", **run},
    }
    build_trainer(config_from_mapping(data)).fit()


def status(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    capsys.readouterr()
    assert main(["status", "--json", *arguments]) == 0
    return dict(json.loads(capsys.readouterr().out))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of a run of two steps."""
    folder = tmp_path_factory.mktemp("runs")
    trained(dir=str(folder))
    return folder / "done"


@pytest.fixture
def done(finished: Path) -> Path:
    """Return a copy of that directory, as `runs/done`."""
    return Path(shutil.copytree(finished, "runs/done"))


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.slow
def test_a_running_run_is_described_and_stopped(capsys: pytest.CaptureFixture[str]) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == ["1\n", "2\n"]
        found = status(capsys)
        assert (found["state"], found["step"], found["total_steps"], found["pid"]) == ("running", 2, 9, process.pid)
        assert isinstance(found["seconds_left"], float)

        assert main(["stop", "runs/watched"]) == 0
        assert capsys.readouterr().out == "runs/watched ended: interrupted, step 2\n"
        assert process.wait() == -signal.SIGTERM or process.returncode == 128 + signal.SIGTERM
    finally:
        process.kill()
        process.communicate()
    assert status(capsys)["state"] == "interrupted"
    assert main(["stop"]) == 0
    assert capsys.readouterr().out == "runs/watched is not running\n"


@pytest.mark.slow
def test_a_killed_run_is_described_as_killed(capsys: pytest.CaptureFixture[str]) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.kill()
    process.communicate()
    found = status(capsys, "runs/watched")
    assert (found["state"], found["seconds_left"]) == ("killed", None)
    assert main(["stop", "runs/watched"]) == 0


def test_the_end_and_every_start_of_a_run_are_recorded(capsys: pytest.CaptureFixture[str]) -> None:
    trained()
    trained(3, resume="auto")
    record = RunRecord.read(Path("runs/done"))
    ends = [start.end for start in record.starts]
    assert [end and (end["status"], end["resumed_from"], end["step"]) for end in ends] == [
        ("completed", 0, 2),
        ("completed", 2, 3),
    ]
    assert [start.resumed_from for start in record.starts] == [0, 2]
    assert {start.pid for start in record.starts} == {os.getpid()}
    assert record.starts[0].packages["torch"]
    assert main(["status"]) == 0
    assert "completed (all 3 steps are done)" in capsys.readouterr().out


def test_a_resume_without_steps_keeps_the_record() -> None:
    trained()
    before = Path("runs/done", FILE).read_text()
    trained(resume="auto")
    assert Path("runs/done", FILE).read_text() == before


def test_a_run_of_another_machine_is_not_called_running(done: Path, capsys: pytest.CaptureFixture[str]) -> None:
    start = attrs.evolve(Start.now(), host="another")
    (done / FILE).write_text(RunRecord(total_steps=9, starts=[start]).text())
    assert status(capsys)["state"] == "unknown"
    assert main(["stop"]) == 2
    assert "is a run on another; call `hooktrainer stop` there" in capsys.readouterr().err


def test_a_later_process_with_the_same_pid_is_not_the_run(done: Path, capsys: pytest.CaptureFixture[str]) -> None:
    start = attrs.evolve(Start.now(), process_started=1)
    (done / FILE).write_text(RunRecord(total_steps=9, starts=[start]).text())
    assert status(capsys)["state"] == "killed"
    assert main(["stop"]) == 0


@pytest.mark.parametrize("damage", [b"", b"\xff\n", b'{"step": 1', b"[]\n", b"7\n", b'{"step": "x"}\n'])
def test_a_damaged_end_of_the_rows_is_skipped(done: Path, capsys: pytest.CaptureFixture[str], damage: bytes) -> None:
    with (done / "metrics.jsonl").open("ab") as file:
        file.write(damage)
    row = status(capsys)["row"]
    assert isinstance(row, dict)
    assert row["step"] == 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "has no run.json, so it is not the directory of a run"),
        ("", "the record of the run cannot be read"),
        ("[]", "is not the record of a run"),
        ('{"total_steps": 1, "starts": [{}]}', "is not the record of a run"),
        ('{"total_steps": 1, "starts": []}', "is not the record of a run"),
    ],
)
def test_what_is_no_run_is_refused(capsys: pytest.CaptureFixture[str], content: str | None, message: str) -> None:
    Path("other").mkdir()
    if content is not None:
        Path("other", FILE).write_text(content)
    assert main(["status", "other"]) == 2
    assert message in capsys.readouterr().err


def test_a_missing_directory_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status"]) == 2
    assert "there is no run in " in capsys.readouterr().err
    assert main(["stop", "runs/nope"]) == 2
    assert "there is no directory runs/nope" in capsys.readouterr().err
