"""The engine's handle of one worker process."""

from __future__ import annotations

import atexit
import os
import select
import signal
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Final

from hooktrainer.ports import Group
from hooktrainer.rollout.process.inbox import Inbox
from hooktrainer.rollout.process.orphans import SPAWN, WorkerProcess, signals_blocked
from hooktrainer.rollout.process.process_exit import ProcessExit, state_of
from hooktrainer.rollout.workers.handle import WorkerHandle

if TYPE_CHECKING:
    from torch import Tensor


class ProcessHandle(WorkerHandle):
    """Spawns a worker process, and holds its end of the connection."""

    def __init__(self, number: int, restarts: int, config: bytes, sets: Sequence[Tensor]) -> None:
        from hooktrainer.rollout.process.worker import main

        super().__init__(number, restarts)
        self.connection, theirs = SPAWN.Pipe()
        self.process: Final = WorkerProcess(
            target=main, args=(theirs, os.getpid(), config, sets), name=f"rollout-{number}", daemon=True
        )
        self._inbox = Inbox(self.connection)
        self._sending = threading.Lock()
        resource_tracker.ensure_running()  # here, since it unblocks signals when it starts
        with theirs, signals_blocked():
            self.process.start()
        assert self.process.pid is not None
        self._pid: Final = self.process.pid
        self._exit: Final = ProcessExit(self._pid)
        atexit.register(self.kill)  # an engine that is never closed must not block the exit of Python
        self._name = f"rollout worker {number} (pid {self._pid})"

    def __str__(self) -> str:
        return self._name

    @property
    def state(self) -> str:
        """Whether its process is running or stopped, as the end of a sentence."""
        return f"is {state_of(self._pid)}" if self.ready else f"is {state_of(self._pid)} and not ready yet"

    def send(self, message: object, seconds: float | None = None) -> bool:
        """Send a message; return False if the pipe stays full for `seconds`. For a dead worker, return True."""
        if not self._sending.acquire(timeout=-1 if seconds is None else max(0.0, seconds)):
            return False
        try:
            self._record_request(message)
            if seconds is not None and not self._is_writable(seconds):
                return False
            with suppress(OSError):
                self.connection.send(message)
            return True
        finally:
            self._sending.release()

    def _is_writable(self, seconds: float) -> bool:
        """Return whether a short message can be sent without blocking, within this many seconds."""
        poll = select.poll()
        try:
            poll.register(self.connection, select.POLLOUT)
        except OSError:  # the connection is closed
            return True
        return bool(poll.poll(max(0.0, seconds) * 1000))

    def received(self) -> Iterator[object]:
        """Yield the messages that it sent and that were not read yet."""
        return self._inbox.received()

    def waitables(self) -> Sequence[Connection | int]:
        """Return objects that become readable when it sends a message or dies."""
        ended = self._exit.fileno()
        return [ended] if self._inbox.hung_up else [ended, self.connection]

    def is_dead(self, seconds: float | None = 0.0) -> bool:
        """Return whether its process has ended, after waiting for at most `seconds`."""
        return self._exit.wait(seconds)

    def raise_if_unwatched(self) -> None:
        """Raise the error of the thread that waited for its exit, if there is one."""
        if self._exit.failure is not None:
            raise self._exit.failure

    def exit_description(self) -> str:
        """Describe how its process ended."""
        self.process.join()
        if (code := self.process.exitcode) is None:
            return "has ended, and other code of this process has read its exit code"
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"returned early, with exit code {code}"

    @property
    def was_killed(self) -> bool:
        """Whether a signal ended its process."""
        return (self.process.exitcode or 0) < 0

    @property
    def advice(self) -> str:
        """What the user can do about how it ended."""
        if self.ready or self.was_killed:
            return "If no user killed it, the system was out of memory: lower `workers` or `slots`."
        return "It never became ready; its error is above. A script must call `fit` under `if __name__ == '__main__':`."

    def abandon(self) -> Sequence[Group]:
        """Release the resources of a dead worker, and return its groups in flight."""
        atexit.unregister(self.kill)
        self._disconnect()
        return super().abandon()

    def hang_up(self) -> None:
        """Close the sending side of the connection; unlike a message to a stopped process, this never blocks."""
        self._shut_down(socket.SHUT_WR)

    def kill(self) -> None:
        """Send SIGKILL to the process, and to all processes that it started."""
        self._exit.kill(group=True)
        self._exit.kill()  # it may not have joined its group yet

    def sever(self) -> None:
        """Kill processes that a dead worker has started, and wake threads that are sending to it."""
        self._exit.kill(group=True)  # those with a session of their own are not in the group
        self._shut_down(socket.SHUT_RDWR)  # what has arrived can still be read

    def close(self) -> None:
        """Release the resources of a dead process."""
        atexit.unregister(self.kill)
        self.sever()
        self.process.join()
        self._disconnect()
        with suppress(ValueError):  # user code has reaped it, which `multiprocessing` does not notice
            self.process.close()

    def _disconnect(self) -> None:
        with self._sending:  # not while a thread that `sever` has woken still uses the connection
            self.connection.close()

    def _shut_down(self, how: int) -> None:
        with suppress(OSError), socket.socket(fileno=os.dup(self.connection.fileno())) as ours:
            ours.shutdown(how)
