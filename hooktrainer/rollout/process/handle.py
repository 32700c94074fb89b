"""One worker process as its engine sees it."""

from __future__ import annotations

import atexit
import os
import select
import signal
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Final

from hooktrainer._util.signals import HANDLED
from hooktrainer.ports import Floats, Group
from hooktrainer.rollout.process.messages import PackedError, Room

if TYPE_CHECKING:
    from torch import Tensor

_SPAWN: Final = get_context("spawn")  # a fork would copy locks that threads of torch or of this process hold


class WorkerHandle:
    """A process that was just spawned, its connection, and what it has in work."""

    def __init__(self, number: int, restarts: int, config: bytes, sets: Sequence[Tensor]) -> None:
        from hooktrainer.rollout.process.worker import main

        self.number: Final = number
        self.restarts: Final = restarts
        """Processes before this one that died."""
        self.ready = False
        self.groups: dict[int, Group] = {}
        """What it was given and has not answered, by dispatch number."""
        self.tickets: set[int] = set()
        """What it was asked for and has not done."""
        self.scores: Floats | PackedError | None = None
        """What it said of the last canary."""
        self.connection, theirs = _SPAWN.Pipe()
        self.process: Final = _SPAWN.Process(
            target=main, args=(theirs, config, sets), name=f"rollout-{number}", daemon=True
        )
        self.told = Room(0, 0)
        """What it last said about its room."""
        self._given = 0
        self._hung_up = False
        self._sending = threading.Lock()
        resource_tracker.ensure_running()  # started later, with the process, it would unblock signals for both
        with theirs, _unsignalled():
            self.process.start()
        atexit.register(self.kill)  # for whoever never closes: Python would wait for it
        self._name = f"rollout worker {number} (pid {self.process.pid})"

    def __str__(self) -> str:
        return self._name

    @property
    def room(self) -> int:
        """Groups that it could take now, beyond those on their way to it."""
        return self.told.groups - (self._given - self.told.received) if self.ready else 0

    def give(self, group: Group) -> None:
        """Note that a group is sent to it."""
        self.groups[group.number] = group
        self._given += 1

    def send(self, message: object, seconds: float | None = None) -> bool:
        """Send; nothing if it is dead, which its end tells. False if it took nothing for so long, as if stopped."""
        if not self._sending.acquire(timeout=-1 if seconds is None else max(0.0, seconds)):
            return False
        try:
            if seconds is not None and not self._takes(seconds):
                return False
            with suppress(OSError):
                self.connection.send(message)
            return True
        finally:
            self._sending.release()

    def _takes(self, seconds: float) -> bool:
        """Whether a short message could be sent now without waiting, or within so long."""
        poll = select.poll()
        try:
            poll.register(self.connection, select.POLLOUT)
        except OSError:  # closed, so that nothing is waited for
            return True
        return bool(poll.poll(max(0.0, seconds) * 1000))

    def received(self) -> Iterator[object]:
        """What it has sent and nobody has read."""
        try:
            while not self._hung_up and self.connection.poll():
                yield self.connection.recv()
        except (EOFError, OSError):  # also in the middle of a message
            self._hung_up = True

    def ends(self) -> Sequence[Connection | int]:
        """What gets readable when it has sent something or is dead."""
        return [self.process.sentinel] if self._hung_up else [self.process.sentinel, self.connection]

    def is_dead(self) -> bool:
        """Whether its process has ended."""
        return bool(wait([self.process.sentinel], 0))

    def ended(self) -> str:
        """How its process ended."""
        self.process.join()
        code = self.process.exitcode or 0
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"returned early, with exit code {code}"

    @property
    def was_killed(self) -> bool:
        """Whether a signal ended its process, and not its own code."""
        return (self.process.exitcode or 0) < 0

    def give_up(self) -> Sequence[Group]:
        """It is dead: expect nothing of it any more, and let go of it; what it had in work."""
        atexit.unregister(self.kill)
        self.connection.close()
        lost = list(self.groups.values())
        self.ready = False
        self.groups.clear()
        self.tickets.clear()
        return lost

    def hang_up(self) -> None:
        """Let it see the end of the connection; never blocks, as a message to a stopped process would."""
        with socket.socket(fileno=os.dup(self.connection.fileno())) as ours, suppress(OSError):
            ours.shutdown(socket.SHUT_WR)

    def kill(self) -> None:
        """End it, whatever it does."""
        self.process.kill()

    def close(self) -> None:
        """Let go of a dead process."""
        atexit.unregister(self.kill)
        self.process.join()
        self.connection.close()
        self.process.close()


@contextmanager
def _unsignalled() -> Iterator[None]:
    """Processes started here hear nothing of what is sent to the whole group, by a terminal, `timeout` or a scheduler:

    their engine ends them, after the run has ended in order.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
