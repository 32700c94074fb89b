"""End of a worker process with its engine, however the engine ends."""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import get_context
from time import sleep
from typing import Any, Final

from hooktrainer._util.threads import ReportingThread

SPAWN: Final = get_context("spawn")  # a fork would copy locks held by other threads
GRACE_S: Final = 1.0
"""Seconds that a worker has to end after its engine, before it is killed."""
_CHECK_S: Final = 0.5
"""Seconds between two checks that the engine is alive."""
_SET_SIGNAL_OF_PARENT_DEATH: Final = 1
"""`PR_SET_PDEATHSIG` of Linux."""


class WorkerProcess(SPAWN.Process):  # type: ignore[name-defined,misc] # mypy does not know the class of a context
    """A spawned process with a process group of its own, which a stopped process also leaves if its engine dies."""

    def __reduce__(self) -> tuple[Any, ...]:
        # `_arrived` is called before the arguments are read, which takes seconds, because it imports torch.
        return _arrived, (type(self), os.getpid()), self.__dict__


def _arrived(kind: type[WorkerProcess], engine: int) -> WorkerProcess:
    os.setpgid(0, 0)  # the engine kills this group when the worker is dead
    # The signal is SIGCONT, which resumes a stopped process: it then kills its whole group. SIGKILL would leave
    # processes that it started, and would also be sent when the thread ends that started this process.
    with suppress(AttributeError, OSError):  # another system than Linux
        ctypes.CDLL(None).prctl(_SET_SIGNAL_OF_PARENT_DEATH, signal.SIGCONT, 0, 0, 0)
    if os.getppid() != engine:  # it died before
        os._exit(1)
    return kind.__new__(kind)


def end_with(engine: int, on_failure: Callable[[BaseException], None]) -> None:
    """End this process, and those that it starts, with its parent `engine`.

    A process that the engine forked may hold the other end of the connection open.
    """
    worker = os.getpid()

    def kill_orphans() -> None:
        if os.getpid() == worker and os.getppid() != engine:
            os.killpg(worker, signal.SIGKILL)

    def watch() -> None:
        while os.getppid() == engine:
            sleep(_CHECK_S)
        sleep(GRACE_S)
        kill_orphans()

    atexit.register(kill_orphans)  # first, so that it is called last
    ReportingThread(watch, "orphan-check", on_failure).start()
