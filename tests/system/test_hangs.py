"""A component that never returns: the run ends soon after the first signal and names the component."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from helpers.subprocess_runs import CONFIG, FIT, SubprocessRun, config

LIMIT_S = 10
SAVING = "{use: checkpoint, every: 1000}"


def fit(directory: Path, text: str, *overrides: str) -> SubprocessRun:
    (directory / "run.yaml").write_text(text)
    return SubprocessRun(directory, *FIT, "run.yaml", *overrides)


def with_sink(name: str, **options: object) -> str:
    return config(**options).replace("sinks: [console, jsonl]", f"sinks: [console, 'faulty_sinks:{name}', jsonl]")


def test_a_sink_that_never_returns_is_named_and_the_run_ends(tmp_path: Path) -> None:
    run = fit(tmp_path, with_sink("Hangs"))
    run.until("AT write")
    sent = run.send(signal.SIGTERM)
    run.until("AT write")  # again at the end of the run
    run.send(signal.SIGTERM)
    run.send(signal.SIGTERM)

    assert run.ended() == 143
    assert time.monotonic() - sent < LIMIT_S
    assert "Hangs.hang" in run.err
    assert "log_after_collect.write_unreported" in run.err
    assert run.ends == ["interrupted 1 SIGTERM"]
    assert run.rows() == [1]
    assert run.left() == []


@pytest.mark.slow
def test_the_last_step_is_saved_although_a_sink_never_returns(tmp_path: Path) -> None:
    run = fit(tmp_path, with_sink("Hangs", plugins=[SAVING]))
    run.until("AT write")
    sent = run.send(signal.SIGTERM)

    assert run.ended() == 143
    assert time.monotonic() - sent < LIMIT_S
    assert run.checkpoints() == ["step_00000001"]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize(
    ("sink", "place"),
    [
        ("HangsInOpen", "open"),
        ("HangsInClose", "close"),
        ("TriesForEver", "write"),
        ("CatchesAll", "write"),
        ("HangsInNativeCode", "write"),
        ("HangsAfterAsyncio", "write"),
    ],
)
def test_a_sink_that_hangs_anywhere_ends_the_run_after_one_signal(
    sink: str, place: str, number: signal.Signals, tmp_path: Path
) -> None:
    run = fit(tmp_path, with_sink(sink), "trainer.total_steps=2")
    run.until(f"AT {place}")
    sent = run.send(number)

    assert run.ended() == 128 + number
    assert time.monotonic() - sent < LIMIT_S
    assert f"{sink}.hang" in run.err
    assert "did not return" in run.err or "was interrupted" in run.err
    assert run.left() == [] or sink in ("CatchesAll", "HangsInNativeCode")


@pytest.mark.slow
def test_a_signal_to_a_forked_child_does_not_concern_the_run(tmp_path: Path) -> None:
    run = fit(tmp_path, with_sink("CountsInChild"), "trainer.total_steps=8")

    assert run.ended() == 0, run.err
    assert run.rows() == list(range(1, 9))


@pytest.mark.slow
def test_a_sink_that_hangs_in_rewind_ends_the_run_after_one_signal(tmp_path: Path) -> None:
    assert fit(tmp_path, config(plugins=[SAVING]), "trainer.total_steps=2").ended() == 0
    run = fit(tmp_path, with_sink("HangsInRewind", plugins=[SAVING]), "run.resume=auto")
    run.until("AT rewind")
    sent = run.send(signal.SIGTERM)

    assert run.ended() == 143
    assert time.monotonic() - sent < LIMIT_S
    assert "HangsInRewind.hang" in run.err


PROMPTS = """
import sys, time
import attrs
from hooktrainer.tasks.sort_digits import SortDigits

def hang():
    sys.stdout.write("AT hang\\n")
    sys.stdout.flush()
    while True:
        time.sleep(60)

@attrs.frozen(kw_only=True)
class Task(SortDigits):
    at: str

    def grade(self, truth, answer):
        if self.at == "score":
            hang()
        return super().grade(truth, answer)

    def train(self, seed):
        for place, prompt in enumerate(super().train(seed)):
            if place == 9 and self.at == "train":
                hang()
            yield prompt
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("at", "engine"), [("train", "inline"), ("train", "thread"), ("score", "inline"), ("score", "process")]
)
def test_a_task_that_never_returns_ends_the_run_after_one_signal(at: str, engine: str, tmp_path: Path) -> None:
    (tmp_path / "task.py").write_text(PROMPTS)
    text = CONFIG.replace("use: thread", f"use: {engine}")
    run = fit(tmp_path, config(text=text), "task.use=task.py:Task", f"task.at={at}")
    run.until("AT hang")
    sent = run.send(signal.SIGTERM)

    assert run.ended() == 143
    assert time.monotonic() - sent < LIMIT_S
    assert "task.py" in run.err
    assert run.left() == []
