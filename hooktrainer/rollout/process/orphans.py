"""Start of a worker process, so that it cannot outlive its engine while it is stopped."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from typing import Any, Final

from hooktrainer._util.forks import HANDLED

SPAWN: Final = get_context("spawn")  # a fork would copy locks held by other threads
SET_SIGNAL_OF_PARENT_DEATH: Final = 1
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
        ctypes.CDLL(None).prctl(SET_SIGNAL_OF_PARENT_DEATH, signal.SIGCONT, 0, 0, 0)
    if os.getppid() != engine:  # it died before
        os._exit(1)
    return kind.__new__(kind)


@contextmanager
def signals_blocked() -> Iterator[None]:
    """Block signals for processes that are started in the block.

    A terminal, `timeout` or a scheduler signals the whole process group. This process ends the others itself, after an
    orderly end of the run.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
