"""Workers, and processes that they started, end with their engine; no process that was reaped is signalled."""

from __future__ import annotations

import multiprocessing
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from multiprocessing import active_children
from pathlib import Path

import pytest

from helpers.rollouts import LENGTH, Queue, generator_config, groups, publish
from hooktrainer.rollout.process.engine import ProcessOptions
from hooktrainer.rollout.process.handle import ProcessHandle
from hooktrainer.rollout.process.process_exit import is_exiting
from hooktrainer.rollout.workers.engine import WorkerEngine

SCRIPT = """
import os, signal, sys, time, multiprocessing
from pathlib import Path
from helpers import rollouts
from helpers.faulty_tasks import Starts
from hooktrainer.rollout.process.engine import ProcessOptions

act = sys.argv[1]
if __name__ == '__main__':
    task = Starts(pid=Path(sys.argv[2])) if act == 'starts' else rollouts.TASK
    engine = ProcessOptions(n=2, max_response_length=6).build(rollouts.generator_config(task=task))
    rollouts.publish(engine, 0)
    queue = rollouts.Queue(rollouts.groups(4))
    engine.start(queue)
    children = multiprocessing.active_children()
    for child in children:  # as soon as it has left the group of the engine
        while os.getpgid(child.pid) != child.pid:
            time.sleep(0.001)
    if act != 'starting':
        queue.wait_for(4)
    if act in ('stopped', 'starting', 'starts'):
        for child in children:
            os.kill(child.pid, signal.SIGSTOP)
    more = [int(Path(sys.argv[2]).read_text())] if act == 'starts' else []
    forked = os.fork() if act == 'forks' else 1
    if forked:
        print(forked, *(child.pid for child in children), *more, flush=True)
    time.sleep(600)
"""
REAPER = """
import ctypes, os, subprocess, sys
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: the workers stay in a session of their parent
engine = subprocess.Popen([sys.executable, *sys.argv[1:]])
print(engine.pid, flush=True)
os.dup2(2, 1)  # the output ends with the engine
sys.stdin.read()
"""


@pytest.mark.slow
@pytest.mark.parametrize("act", ["nothing", "forks", "stopped", "starting", "starts"])
@pytest.mark.skipif(sys.platform != "linux", reason="uses PR_SET_CHILD_SUBREAPER")
def test_no_worker_outlives_a_killed_engine(act: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "-c", REAPER, str(tmp_path / "script.py"), act, str(tmp_path / "pid")]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, env=env, start_new_session=True, **pipes) as reaper:
        engine = int(reaper.stdout.readline())
        forked, *pids = map(int, reaper.stdout.readline().split())
        ends = {pid: os.pidfd_open(pid) for pid in pids}
        os.kill(engine, signal.SIGKILL)
        alive = [pid for pid, end in ends.items() if not select.select([end], [], [], 30)[0]]
        for pid in alive:
            os.kill(pid, signal.SIGKILL)
        if forked > 1:
            os.kill(forked, signal.SIGKILL)
        reaper.stdin.close()

    assert len(pids) == (3 if act == "starts" else 2)
    assert [pids.index(pid) for pid in alive] == []


@pytest.fixture
def engine() -> Iterator[WorkerEngine]:
    made = ProcessOptions(n=2, max_response_length=LENGTH, workers=1).build(generator_config())
    yield made
    made.close()


def reaped_by_join(worker: ProcessHandle) -> None:
    worker.process.join()


def reaped_by_the_list_of_children(worker: ProcessHandle) -> None:
    worker.is_dead(None)
    active_children()


def reaped_by_user_code(worker: ProcessHandle) -> None:
    os.waitpid(worker.process.pid, 0)


REAPED = [reaped_by_join, reaped_by_the_list_of_children, reaped_by_user_code]


@pytest.mark.parametrize("reaped", REAPED)
def test_a_worker_is_not_signalled_once_it_was_reaped(
    reaped: Callable[[ProcessHandle], None], engine: WorkerEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = engine._pool._spawn(0, 0)
    os.kill(worker.process.pid, signal.SIGKILL)
    reaped(worker)
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append((pid, number)))
    monkeypatch.setattr(os, "killpg", lambda group, number: sent.append((group, number)))
    worker.kill()
    worker.sever()
    worker.close()
    multiprocessing.process._children.discard(worker.process)  # else the library lists it for ever

    assert sent == []


def process_with_pid(pid: int) -> subprocess.Popen[bytes]:
    """Start a process of a new session whose pid was that of another one."""
    last = Path("/proc/sys/kernel/ns_last_pid")
    for _ in range(100):
        try:
            last.write_text(str(pid - 1))
        except OSError:
            break
        found = subprocess.Popen(["cat"], start_new_session=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        if found.pid == pid:
            return found
        found.communicate()
    pytest.skip("this system does not let a test choose a pid")


def test_another_process_that_got_the_pid_of_a_worker_survives_its_end(engine: WorkerEngine) -> None:
    worker = engine._pool._spawn(0, 0)
    os.kill(worker.process.pid, signal.SIGKILL)
    reaped_by_join(worker)
    with process_with_pid(worker.process.pid) as other:
        worker.kill()
        worker.sever()
        worker.close()
        answer, _ = other.communicate(b"alive")

    assert answer == b"alive"


def test_a_copy_of_the_engine_does_not_signal_the_workers(engine: WorkerEngine) -> None:
    worker = engine._pool._spawn(0, 0)
    copy = os.fork()
    if copy == 0:
        worker.kill()
        os._exit(0)
    os.waitpid(copy, 0)
    alive = not worker.is_dead()
    worker.kill()
    worker.close()

    assert alive


@pytest.mark.slow
def test_workers_survive_the_end_of_the_thread_that_started_them(engine: WorkerEngine) -> None:
    publish(engine, 0)
    queue = Queue(groups(2))
    starter = threading.Thread(target=engine.start, args=(queue,))
    starter.start()
    starter.join()
    queue.wait_for(2)

    assert not queue.failed
    assert engine.take_metrics()["rollout/restarts"].value == 0


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_process_that_was_not_reaped_is_exiting() -> None:
    assert not is_exiting(os.getpid())
    with subprocess.Popen([sys.executable, "-S", "-c", ""]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert is_exiting(child.pid)
    assert not is_exiting(child.pid)
