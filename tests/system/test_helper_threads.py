"""An error in any thread that hooktrainer starts ends the run, with the name of the thread."""

from __future__ import annotations

import ast
import time
from pathlib import Path

import attrs
import pytest

from helpers.subprocess_runs import CONFIG, FIT, FIT_ON_RANKS, PROCESSES, SubprocessRun, config

ROOT = Path(__file__).parents[2]
WITHIN_S = 10.0
FAILS = """
import os, re, sys, threading
import attrs, torch
from hooktrainer import Plugin, on
from hooktrainer._util import signals
from hooktrainer.checkpoint.store import Store
from hooktrainer.events import FitStart
from hooktrainer.learner.ranks import follower, followers
from hooktrainer.rollout.workers.pool import WorkerPool
from hooktrainer.rollout.workers.worker import RemoteGroupSource
from hooktrainer.rollout.ray.handle import ActorHandle
from hooktrainer.rollout.event_loop import EventLoop
from hooktrainer.rollout.score_pool import ScorePool
from hooktrainer.rollout.thread import FairSource
from hooktrainer.tasks.sort_digits import SortDigits
from hooktrainer.weight_sync import copying
from hooktrainer.weight_sync.double_buffer import ModulePair
from hooktrainer_plugins.watchdog import Watchdog

class OwnError(BaseException): ...

THREAD, ERROR = os.environ["THREAD"], eval(os.environ["ERROR"])

def fail(owner, name):
    real = getattr(owner, name)
    def failing(*args, **options):
        if re.fullmatch(THREAD, threading.current_thread().name):
            os.write(1, b"AT fault\\n")
            raise ERROR
        return real(*args, **options)
    setattr(owner, name, failing)

def forbidden(pid):
    raise OSError(1, "Operation not permitted")

fail(*eval(os.environ["PATCHED"]))
if THREAD.startswith("exit-of"):
    os.pidfd_open = forbidden
if THREAD.startswith("weight_sync"):
    torch.set_num_threads(2)
    copying._MIN_BYTES_FOR_THREADS = 0

@attrs.frozen(kw_only=True)
class Task(SortDigits):
    def score(self, example, answers):
        scores = SortDigits.score(self, example, answers)
        return later(scores) if THREAD == "reward-loop" else scores

async def later(scores):
    return scores

@attrs.define(kw_only=True)
class Wakes(Plugin):
    @on(FitStart)
    def wake(self, event: FitStart) -> None:
        if THREAD == "hang-watch":
            os.write(signals._watch._write, b"\\x7f")
"""


RAY = PROCESSES.replace("use: process", "use: ray")


@attrs.frozen
class Case:
    """The body of a thread, and a function that it calls."""

    file: str
    thread: str
    patched: str
    engine: str = CONFIG
    command: tuple[str, ...] = FIT


CASES = {
    "hang-watch": Case("hooktrainer/_util/hangs.py", "hang-watch", "os, 'read'"),
    "checkpoint-writer": Case("hooktrainer/checkpoint/writer_thread.py", "checkpoint-writer", "Store, 'save'"),
    "checkpoint-writer while it waits": Case(
        "hooktrainer/checkpoint/writer_thread.py", "checkpoint-writer", "threading.Condition, 'wait_for'"
    ),
    "rollout-0": Case("hooktrainer/rollout/thread.py", "rollout-0", "FairSource, 'claim'"),
    "rollout_feed": Case("hooktrainer/rollout/workers/pool.py", "rollout_feed", "WorkerPool, '_distribute'", PROCESSES),
    "rollout_listen": Case("hooktrainer/rollout/workers/pool.py", "rollout_listen", "WorkerPool, '_handle'", PROCESSES),
    "rollout": Case("hooktrainer/rollout/workers/worker.py", "rollout", "RemoteGroupSource, 'claim'", PROCESSES),
    "release": Case("hooktrainer/rollout/workers/worker.py", "release", "ModulePair, 'release'", PROCESSES),
    "orphan-check": Case("hooktrainer/rollout/process/worker.py", "orphan-check", "os, 'getppid'", PROCESSES),
    "exit-of": Case("hooktrainer/rollout/process/process_exit.py", r"exit-of-\d+", "os, 'waitid'", PROCESSES),
    "actor": Case("hooktrainer/rollout/ray/handle.py", r"actor-\d+", "ActorHandle, '_read'", RAY),
    "reward": Case("hooktrainer/rollout/score_pool.py", r"reward-\d+", "ScorePool, '_next_job'"),
    "reward-loop": Case("hooktrainer/rollout/event_loop.py", "reward-loop", "EventLoop, '_run'"),
    "weight_sync": Case("hooktrainer/weight_sync/copying.py", r"weight_sync_\d+", "copying, '_copy'"),
    "rank-watch": Case(
        "hooktrainer/learner/ranks/followers.py", "rank-watch", "followers, 'wait'", command=FIT_ON_RANKS
    ),
    "rank-listen": Case(
        "hooktrainer/learner/ranks/follower.py", "rank-listen", "follower, 'receive'", command=FIT_ON_RANKS
    ),
    "watchdog": Case("plugins/hooktrainer_plugins/watchdog.py", "watchdog", "Watchdog, '_report'"),
}
NOT_OF_A_RUN = {"hooktrainer/run/report/training.py", "hooktrainer/rollout/server/group_feed.py"}
"""Threads that wait for runs, and those that need a server. tests/run/report/test_compare.py and
tests/rollout/test_server.py check that their errors end the command or the run."""
STARTERS = {"Thread", "Timer", "ThreadPool", "ThreadPoolExecutor", "start_new_thread", "ReportingThread"}


def starts(tree: ast.AST) -> list[int]:
    """Return the lines that start a thread, or make one."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    names = [
        (call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", ""), call.lineno)
        for call in calls
    ]
    return [line for name, line in names if name in STARTERS]


@pytest.mark.skipif(not (ROOT / "LICENSE").exists(), reason="only the tests are here")
def test_every_thread_is_among_the_cases() -> None:
    files = [*ROOT.glob("hooktrainer/**/*.py"), *ROOT.glob("plugins/**/*.py")]
    found = {
        str(path.relative_to(ROOT)): count
        for path in files
        if str(path.relative_to(ROOT)) not in NOT_OF_A_RUN
        if (count := len(starts(ast.parse(path.read_text(encoding="utf-8")))))
    }
    threads = {file: {case.thread for case in CASES.values() if case.file == file} for file in found}
    pools = {"hooktrainer/rollout/workers/pool.py": 1}  # one line starts both of its threads
    assert found == {file: pools.get(file, len(threads[file])) for file in {case.file for case in CASES.values()}}


@pytest.mark.slow
@pytest.mark.parametrize("error", ["MemoryError()", "SystemExit(0)", "OwnError('boom')"])
@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_an_error_in_a_thread_ends_the_run_and_names_the_thread(
    case: Case, error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fails.py").write_text(FAILS)
    plugins = ["'fails.py:Wakes'", "{use: checkpoint, every: 1}", "{use: watchdog, timeout_s: 0.01}"]
    (tmp_path / "run.yaml").write_text(config(text=case.engine, plugins=plugins))
    for name, value in {"THREAD": case.thread, "ERROR": error, "PATCHED": case.patched}.items():
        monkeypatch.setenv(name, value)
    run = SubprocessRun(tmp_path, *case.command, "run.yaml", "task.use=fails.py:Task")
    run.until("AT fault")
    since = time.monotonic()
    code = run.ended()

    assert code == 1, run.err
    assert time.monotonic() - since < WITHIN_S
    assert case.thread.removesuffix(r"\d+") in run.err
    assert error.partition("(")[0] in run.err
    assert [name for name in run.left() if not name.endswith(".no_step")] == []


FAILS_LATE = """
import os, sys, threading, time
import attrs
from hooktrainer import Plugin, Priority, on
from hooktrainer._util import signals
from hooktrainer.events import FitEnd, FitStart
from hooktrainer.plugin import port
from hooktrainer.ports import RolloutEngine
from hooktrainer.rollout.process.handle import ProcessHandle
from hooktrainer.rollout.workers.pool import WorkerPool
from hooktrainer.tasks.sort_digits import SortDigits

def fail(owner, name, thread):
    real = getattr(owner, name)
    def failing(*args, **options):
        if threading.current_thread().name == thread:
            os.write(1, b"AT fault\\n")
            raise MemoryError("no memory")
        return real(*args, **options)
    setattr(owner, name, failing)

def end(thread):
    for other in threading.enumerate():
        if other.name == thread:
            other.join()

@attrs.frozen(kw_only=True)
class NeverReturns(SortDigits):
    def grade(self, truth, answer):
        threading.Event().wait()

@attrs.define(kw_only=True)
class FailsLate(Plugin):
    thread: str
    at: str = "fit_end"
    engine: RolloutEngine = port()

    @on(FitStart, priority=Priority.CLEANUP)
    def start(self, event: FitStart) -> None:
        if self.at == "fit_start":
            self.fail()

    @on(FitEnd, priority=Priority.SAVE)
    def end(self, event: FitEnd) -> None:
        if self.at == "fit_end":
            self.fail()

    def fail(self) -> None:
        if self.thread == "hang-watch":
            fail(os, "read", "hang-watch")
            os.write(signals._watch._write, b"\\x7f")
        elif self.thread == "rollout_listen":
            fail(ProcessHandle, "sever", "rollout_listen")  # called when the worker ends
        elif self.thread == "rollout_feed":
            # It waits for free capacity or for a pending group.
            fail(WorkerPool, "_free_capacity", "rollout_feed")
            fail(threading.Condition, "wait", "rollout_feed")
            pool = self.engine._pool
            for changed in (pool._changed, pool._buffer._claimable):
                with changed:
                    changed.notify_all()
            end("rollout_feed")
"""


def fails_late(directory: Path, thread: str, at: str, text: str, *overrides: str) -> SubprocessRun:
    (directory / "fails_late.py").write_text(FAILS_LATE)
    plugin = f"{{use: 'fails_late.py:FailsLate', thread: {thread}, at: {at}}}"
    (directory / "run.yaml").write_text(config(text=text, plugins=[plugin]))
    run = SubprocessRun(directory, *FIT, "run.yaml", *overrides)
    run.until("AT fault")
    return run


@pytest.mark.slow
@pytest.mark.parametrize(
    ("thread", "text"), [("hang-watch", CONFIG), ("rollout_listen", PROCESSES), ("rollout_feed", PROCESSES)]
)
def test_an_error_in_a_thread_after_the_last_sample_fails_the_run(thread: str, text: str, tmp_path: Path) -> None:
    run = fails_late(tmp_path, thread, "fit_end", text, "trainer.total_steps=3")

    assert run.ended() == 1, run.err
    assert f"the thread {thread} failed: MemoryError('no memory')" in run.err
    assert run.ends == ["completed 3 all 3 steps are done"]
    assert run.rows() == [1, 2, 3]
    assert run.left() == []


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["inline", "thread"])
def test_an_error_in_the_thread_that_watches_for_hangs_ends_a_run_that_waits(engine: str, tmp_path: Path) -> None:
    never = "task.use=fails_late.py:NeverReturns"
    run = fails_late(tmp_path, "hang-watch", "fit_start", CONFIG.replace("use: thread", f"use: {engine}"), never)
    since = time.monotonic()

    assert run.ended() == 1, run.err
    assert time.monotonic() - since < WITHIN_S
    assert "the thread hang-watch failed: MemoryError('no memory')" in run.err
    assert [end.split()[0] for end in run.ends] == ["failed"]
    assert run.left() == []
