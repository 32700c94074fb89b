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


@pytest.mark.slow
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


NATIVE = """
import ctypes, sys, threading, time
import attrs
from hooktrainer import Plugin, on
from hooktrainer.events import StepEnd

@attrs.define(kw_only=True)
class Native(Plugin):
    seconds: float

    @on(StepEnd, priority=600)
    def wait_for_the_disk(self, event: StepEnd) -> None:
        if event.step == 2:
            mutex = ctypes.create_string_buffer(64)
            ctypes.CDLL(None).pthread_mutex_lock(mutex)
            timer = threading.Timer(self.seconds, lambda: ctypes.CDLL(None).pthread_mutex_unlock(mutex))
            timer.daemon = True
            timer.start()
            sys.stdout.write("AT native\\n")
            sys.stdout.flush()
            ctypes.CDLL(None).pthread_mutex_lock(mutex)
"""


def fit_native(directory: Path, seconds: float, patience_s: float) -> SubprocessRun:
    (directory / "native.py").write_text(NATIVE)
    saving = f"{{use: checkpoint, every: 1000, patience_s: {patience_s}}}"
    return fit(directory, config(plugins=[saving, f"{{use: 'native.py:Native', seconds: {seconds}}}"]))


@pytest.mark.slow
def test_a_native_call_that_returns_within_the_patience_of_the_checkpoint_loses_no_step(tmp_path: Path) -> None:
    run = fit_native(tmp_path, seconds=10.0, patience_s=60.0)
    run.until("AT native")
    run.send(signal.SIGTERM)

    assert run.ended() == 143
    assert run.ends == ["interrupted 2 SIGTERM"]
    assert run.checkpoints() == ["step_00000002"]
    assert run.rows() == [1, 2]
    assert "Native.wait_for_the_disk" in run.err
    assert "cannot be interrupted; SIGTERM ends the process after 60 s" in run.err
    assert "the process exits without it" not in run.err
    assert run.left() == []


@pytest.mark.slow
@pytest.mark.parametrize("patience_s", [2.0, 9.0])
def test_a_native_call_that_never_returns_ends_the_process_after_the_longest_patience(
    patience_s: float, tmp_path: Path
) -> None:
    run = fit_native(tmp_path, seconds=600.0, patience_s=patience_s)
    run.until("AT native")
    sent = run.send(signal.SIGTERM)

    assert run.ended() == 143
    assert time.monotonic() - sent > max(patience_s, 8.0)
    assert "Native.wait_for_the_disk" in run.err
    assert f"did not return within {max(patience_s, 8.0):.0f} s after SIGTERM" in run.err


OWN_HANDLER = """
import os, signal, time
import attrs
from hooktrainer import Plugin, on
from hooktrainer.events import StepEnd

@attrs.define(kw_only=True)
class OwnHandler(Plugin):
    @on(StepEnd)
    def handle_signals(self, event: StepEnd) -> None:
        if event.step == 1:
            signal.signal(signal.SIGTERM, lambda *_: print("AT own handler", flush=True))
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(9.5)
"""


@pytest.mark.slow
def test_a_signal_that_a_plugin_handles_does_not_end_the_run(tmp_path: Path) -> None:
    (tmp_path / "own_handler.py").write_text(OWN_HANDLER)
    run = fit(tmp_path, config(plugins=["'own_handler.py:OwnHandler'"]), "trainer.total_steps=2")

    assert run.ended() == 0, run.err
    assert run.out.count("AT own handler") == 1
    assert run.rows() == [1, 2]
