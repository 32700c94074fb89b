"""State and exit of a child process, seen by its pid.

The sentinel of `multiprocessing` is a pipe, which stays open as long as any process that the child forked.
"""

from __future__ import annotations

import os
import signal
import sys
import weakref
from contextlib import suppress
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from typing import Final

from hooktrainer._util.threads import ReportingThread, failure_of
from hooktrainer.errors import HookTrainerError

_PF_EXITING: Final = 0x4  # of `include/linux/sched.h`
_STATES: Final = {
    "T": "stopped (SIGCONT resumes it)",
    "t": "stopped by a debugger",
    "D": "waiting for a disk",
    "Z": "dead",
    "X": "dead",
}


def state_of(pid: int) -> str:
    """Return the state of a process; `running` where the system has no `/proc`."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return "running" if sys.platform != "linux" else "dead"
    return _STATES.get(stat.rpartition(")")[2].split()[0], "running")


def is_exiting(pid: int) -> bool:
    """Return whether a process is about to exit. It closes its files before its children get another parent."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return bool(int(stat.rpartition(")")[2].split()[6]) & _PF_EXITING)


class ProcessExit:
    """Can be waited for, like a connection: it is readable once a child process has exited, reaped or not."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.failure: HookTrainerError | None = None
        """The error of the thread that waited for the exit; the process is killed then."""
        self._is_pidfd = True
        self._descriptor = self._opened()
        weakref.finalize(self, os.close, self._descriptor).atexit = False

    def fileno(self) -> int:
        """Return the file descriptor that becomes readable."""
        return self._descriptor

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for at most `seconds`; return whether the process has exited."""
        return bool(wait([self._descriptor], seconds))

    def kill(self, *, group: bool = False) -> None:
        """Send SIGKILL to the process, or to its process group. Do nothing once it was reaped.

        The system may have given its pid to another process then. A forked copy of this process has no such child.
        """
        of = (os.P_PIDFD, self._descriptor) if self._is_pidfd else (os.P_PID, self._pid)
        # The errors: it was reaped, the group is empty, or it runs as another user.
        with suppress(ChildProcessError, ProcessLookupError, PermissionError):
            os.waitid(*of, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            (os.killpg if group else os.kill)(self._pid, signal.SIGKILL)

    def _opened(self) -> int:
        try:
            return os.pidfd_open(self._pid)
        except (AttributeError, OSError):  # an old kernel, or a sandbox that forbids the call
            self._is_pidfd = False
            readable, writable = os.pipe()
            fail = partial(self._fail, writable)
            ReportingThread(partial(_write_at_exit, self._pid, writable), f"exit-of-{self._pid}", fail).start()
            return readable

    def _fail(self, writable: int, error: BaseException) -> None:
        self.failure = failure_of(error)
        with suppress(OSError):  # without `kill`, which waits as this thread does: it would fail in the same way
            os.kill(self._pid, signal.SIGKILL)
        _write(writable)


def _write_at_exit(pid: int, writable: int) -> None:
    with suppress(ChildProcessError):  # it was reaped already
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    _write(writable)


def _write(writable: int) -> None:
    """Write to a pipe. Closing the pipe is not enough, since a fork may hold it open."""
    with open(writable, "wb", buffering=0) as pipe, suppress(OSError):
        pipe.write(b"x")
