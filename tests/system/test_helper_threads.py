"""An error in any thread that hooktrainer starts ends the run, with the name of the thread."""

from __future__ import annotations

import ast
import time
from pathlib import Path

import attrs
import pytest

from helpers.subprocess_runs import CONFIG, FIT, PROCESSES, SubprocessRun, config

ROOT = Path(__file__).parents[2]
WITHIN_S = 10.0
FAILS = """
import os, re, sys, threading
import attrs, torch
from hooktrainer import Plugin, on
from hooktrainer._util import signals
from hooktrainer.checkpoint.store import Store
from hooktrainer.events import FitStart
from hooktrainer.rollout.process.pool import WorkerPool
from hooktrainer.rollout.process.worker import RemoteGroupSource
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
class Task(SortDigits): ...

@attrs.define(kw_only=True)
class Wakes(Plugin):
    @on(FitStart)
    def wake(self, event: FitStart) -> None:
        if THREAD == "hang-watch":
            os.write(signals._watch._write, b"\\x7f")
"""


@attrs.frozen
class Case:
    """The body of a thread, and a function that it calls."""

    file: str
    thread: str
    patched: str
    engine: str = CONFIG


CASES = {
    "hang-watch": Case("hooktrainer/_util/hangs.py", "hang-watch", "os, 'read'"),
    "checkpoint-writer": Case("hooktrainer/checkpoint/writer_thread.py", "checkpoint-writer", "Store, 'save'"),
    "checkpoint-writer while it waits": Case(
        "hooktrainer/checkpoint/writer_thread.py", "checkpoint-writer", "threading.Condition, 'wait_for'"
    ),
    "rollout-0": Case("hooktrainer/rollout/thread.py", "rollout-0", "FairSource, 'claim'"),
    "rollout_feed": Case("hooktrainer/rollout/process/pool.py", "rollout_feed", "WorkerPool, '_distribute'", PROCESSES),
    "rollout_listen": Case("hooktrainer/rollout/process/pool.py", "rollout_listen", "WorkerPool, '_handle'", PROCESSES),
    "rollout": Case("hooktrainer/rollout/process/worker.py", "rollout", "RemoteGroupSource, 'claim'", PROCESSES),
    "release": Case("hooktrainer/rollout/process/worker.py", "release", "ModulePair, 'release'", PROCESSES),
    "orphan-check": Case("hooktrainer/rollout/process/orphans.py", "orphan-check", "os, 'getppid'", PROCESSES),
    "exit-of": Case("hooktrainer/rollout/process/process_exit.py", r"exit-of-\d+", "os, 'waitid'", PROCESSES),
    "weight_sync": Case("hooktrainer/weight_sync/copying.py", r"weight_sync_\d+", "copying, '_copy'"),
    "watchdog": Case("plugins/hooktrainer_plugins/watchdog.py", "watchdog", "Watchdog, '_report'"),
}
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
        if (count := len(starts(ast.parse(path.read_text(encoding="utf-8")))))
    }
    threads = {file: {case.thread for case in CASES.values() if case.file == file} for file in found}
    pools = {"hooktrainer/rollout/process/pool.py": 1}  # one line starts both of its threads
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
    run = SubprocessRun(tmp_path, *FIT, "run.yaml", "task.use=fails.py:Task")
    run.until("AT fault")
    since = time.monotonic()
    code = run.ended()

    assert code == 1, run.err
    assert time.monotonic() - since < WITHIN_S
    assert case.thread.removesuffix(r"\d+") in run.err
    assert error.partition("(")[0] in run.err
    assert [name for name in run.left() if not name.endswith(".no_step")] == []
