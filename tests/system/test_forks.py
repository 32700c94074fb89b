"""Processes that user code forks: they end no run, delay no run, and hide no death of a worker."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from helpers.subprocess_runs import FIT, PROCESSES, SubprocessRun, config

LIMIT_S = 20
"""More than a run takes to end on a busy machine, and less than the 45 s that a forked process sleeps."""
ONE_WORKER = PROCESSES.replace("workers: 2", "workers: 1")

FORKS_ONCE = """
import os, sys, time
from pathlib import Path
import attrs
from hooktrainer.tasks.sort_digits import SortDigits

@attrs.frozen(kw_only=True)
class ForksOnce(SortDigits):
    act: str = "sleep"

    def score(self, truth, answer):
        if not os.path.exists("forked"):
            Path("forked").write_text(str(os.getpid()))
            if os.fork() == 0:
                self.be_copy()
            sys.stdout.write("AT score\\n")
            sys.stdout.flush()
        return super().score(truth, answer)

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
