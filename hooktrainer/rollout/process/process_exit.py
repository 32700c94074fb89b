"""Exit of a child process, seen by its pid.

The sentinel of `multiprocessing` is a pipe, which stays open as long as any process that the child forked.
"""

from __future__ import annotations

import os
import threading
import weakref
from contextlib import suppress
from multiprocessing.connection import wait


class ProcessExit:
    """Can be waited for, like a connection: it is readable once a child process has exited, reaped or not."""

    def __init__(self, pid: int) -> None:
        self._descriptor = _opened(pid)
        weakref.finalize(self, os.close, self._descriptor).atexit = False

    def fileno(self) -> int:
        """Return the file descriptor that becomes readable."""
        return self._descriptor

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for at most `seconds`; return whether the process has exited."""
        return bool(wait([self._descriptor], seconds))


def _opened(pid: int) -> int:
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):  # an old kernel, or a sandbox that forbids the call
        readable, writable = os.pipe()
        threading.Thread(target=_write_at_exit, args=(pid, writable), name=f"exit-of-{pid}", daemon=True).start()
        return readable


def _write_at_exit(pid: int, writable: int) -> None:
    """Wait for a child process, and write to a pipe. Closing the pipe is not enough, since a fork may hold it open."""
    with suppress(ChildProcessError):  # it was reaped already
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    with open(writable, "wb", buffering=0) as pipe, suppress(OSError):
        pipe.write(b"x")
