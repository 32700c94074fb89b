"""Processes that user code forks: they end no run, delay no run, and hide no death of a worker."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from helpers.subprocess_runs import CONFIG, FIT, PROCESSES, SubprocessRun, config

LIMIT_S = 20
"""More than a run takes to end on a busy machine, and less than the 45 s that a forked process sleeps."""
ONE_WORKER = PROCESSES.replace("workers: 2", "workers: 1")

FORKS_ONCE = """
import os, signal, sys, time
from pathlib import Path
import attrs
from hooktrainer.tasks.sort_digits import SortDigits

@attrs.frozen(kw_only=True)
class ForksOnce(SortDigits):
    act: str = "sleep"

    def grade(self, truth, answer):
        if not os.path.exists("forked"):
            Path("forked").write_text(str(os.getpid()))
            if self.act == "terminated":
                print("AT code", *{self.terminated() for _ in range(20)}, flush=True)
            elif os.fork() == 0:
                self.be_copy()
            sys.stdout.write("AT score\\n")
            sys.stdout.flush()
        return super().grade(truth, answer)

    def terminated(self):
        child = os.fork()
        if child == 0:
            time.sleep(10)
            os._exit(0)
        os.kill(child, signal.SIGTERM)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    def be_copy(self):
        if self.act == "sleep":
            time.sleep(45)
            os._exit(0)
        elif self.act == "exit":
            sys.exit(0)
        elif self.act == "raise":
            raise ValueError("raised in the copy")
"""


def fit(directory: Path, text: str, *overrides: str) -> SubprocessRun:
    (directory / "run.yaml").write_text(text)
    (directory / "forks.py").write_text(FORKS_ONCE)
    return SubprocessRun(directory, *FIT, "run.yaml", "task.use=forks.py:ForksOnce", *overrides)


def forking_worker(run: SubprocessRun) -> int:
    """Wait until a worker has forked; return its pid."""
    run.until("AT score")
    return int((run.directory / "forked").read_text())


@pytest.mark.slow
def test_a_run_ends_when_it_is_done_although_a_worker_has_forked(tmp_path: Path) -> None:
    run = fit(tmp_path, config(text=ONE_WORKER), "trainer.total_steps=3")
    run.until("completed")
    since = time.monotonic()

    assert run.ended() == 0, run.err
    assert time.monotonic() - since < LIMIT_S
    assert "sending SIGKILL" not in run.err
    assert run.left() == []


@pytest.mark.slow
def test_a_killed_worker_is_restarted_although_it_had_forked(tmp_path: Path) -> None:
    run = fit(tmp_path, config(text=ONE_WORKER))
    pid = forking_worker(run)
    run.until("step", times=2)
    os.kill(pid, signal.SIGKILL)
    since = time.monotonic()
    for line in run.process.stderr:
        if f"(pid {pid}) was killed by SIGKILL" in line:
            break

    assert time.monotonic() - since < LIMIT_S
    run.until("step", times=20)  # the other worker generates
    run.send(signal.SIGTERM)
    assert run.ended() == 143
    assert run.left() == []


@pytest.mark.slow
def test_ctrl_c_ends_a_run_although_a_worker_has_forked(tmp_path: Path) -> None:
    run = fit(tmp_path, config(text=ONE_WORKER))
    forking_worker(run)
    run.until("step", times=2)
    sent = run.send_all(signal.SIGINT)

    assert run.ended() == 130
    assert time.monotonic() - sent < LIMIT_S
    assert run.ends[0].startswith("interrupted")
    assert run.left() == []


FORKING_PLUGIN = """
import multiprocessing, os, signal, sys, time
import attrs
from hooktrainer import Plugin, Priority, on
from hooktrainer.events import FitEnd, IterationEnd, StepEnd

@attrs.define(kw_only=True)
class Forks(Plugin):
    act: str
    at: str = "step"

    @on(StepEnd, priority=Priority.EVALUATE)
    def step(self, event: StepEnd) -> None:
        if event.step == 1 and self.at == "step":
            self.fork()

    @on(FitEnd, priority=Priority.SAVE - 1)
    def end(self, event: FitEnd) -> None:
        if self.at == "fit_end":
            self.fork()

    def fork(self):
        if self.act == "pool":
            with multiprocessing.get_context("fork").Pool(2) as pool:
                assert pool.map(abs, [-1, -2]) == [1, 2]
            print("AT code 0", flush=True)
            return
        if self.act == "terminated":
            print("AT code", *{self.terminated() for _ in range(100)}, flush=True)
            return
        child = os.fork()
        if child == 0:
            self.be_copy()
            return
        print("AT code", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)

    def terminated(self):
        child = os.fork()
        if child == 0:
            time.sleep(10)
            os._exit(0)
        os.kill(child, signal.SIGTERM)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    def be_copy(self):
        if self.act == "exit":
            sys.exit(0)
        elif self.act == "code":
            sys.exit(7)
        elif self.act == "raise":
            raise ValueError("raised in the copy")
        elif self.act in ("SIGTERM", "SIGINT"):
            os.kill(os.getpid(), getattr(signal, self.act))
            time.sleep(45)
"""
SAVING = "{use: checkpoint, every: 1}"
COPIES = {"exit": 0, "code": 7, "raise": 1, "return": 1, "SIGTERM": -15, "SIGINT": 130, "pool": 0, "terminated": -15}


def fit_forking(directory: Path, *overrides: str, **options: object) -> SubprocessRun:
    (directory / "forking_plugin.py").write_text(FORKING_PLUGIN)
    plugin = json.dumps({"use": "forking_plugin.py:Forks", **options})
    return fit(directory, config(plugins=[SAVING, plugin]), "task.use=sort_digits", "trainer.total_steps=3", *overrides)


@pytest.mark.slow
@pytest.mark.parametrize("at", ["step", "fit_end"])
@pytest.mark.parametrize("act", COPIES)
def test_a_process_that_a_plugin_forks_ends_and_the_run_does_not_notice(act: str, at: str, tmp_path: Path) -> None:
    run = fit_forking(tmp_path, act=act, at=at)

    assert run.ended() == 0, run.err
    assert [line for line in run.out if line.startswith("AT")] == [f"AT code {COPIES[act]}"]
    assert len([line for line in run.out if line.startswith("completed")]) == 1
    assert run.ends == ["completed 3 all 3 steps are done"]
    assert run.rows() == [1, 2, 3]
    assert run.checkpoints()[-1] == "step_00000003"
    assert ("ValueError: raised in the copy" in run.err) == (act == "raise")
    assert ("is a copy of the process of the run" in run.err) == (act == "return")
    assert run.left() == []


@pytest.mark.parametrize(
    ("engine", "act"),
    [
        pytest.param(engine, act, marks=pytest.mark.slow)
        for engine in ("inline", "thread", "process")
        for act in ("exit", "raise", "return")
    ],
)
def test_a_process_that_a_score_forks_ends_and_the_run_does_not_notice(engine: str, act: str, tmp_path: Path) -> None:
    text = ONE_WORKER if engine == "process" else CONFIG.replace("use: thread", f"use: {engine}")
    run = fit(tmp_path, config(text=text), f"task.act={act}", "trainer.total_steps=3")

    assert run.ended() == 0, run.err
    assert run.ends == ["completed 3 all 3 steps are done"]
    assert run.rows() == [1, 2, 3]
    assert ("ValueError: raised in the copy" in run.err) == (act == "raise")
    assert ("is a copy of the process of the run" in run.err) == (act == "return")
    assert run.left() == []


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["thread", "process"])
def test_a_process_that_a_score_forks_can_be_terminated(engine: str, tmp_path: Path) -> None:
    text = ONE_WORKER if engine == "process" else CONFIG
    run = fit(tmp_path, config(text=text), "task.act=terminated", "trainer.total_steps=3")

    assert run.ended() == 0, run.err
    assert [line for line in run.out if line.startswith("AT code")] == ["AT code -15"]
    assert run.ends == ["completed 3 all 3 steps are done"]
    assert run.left() == []
