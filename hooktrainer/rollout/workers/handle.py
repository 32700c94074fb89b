"""The engine's handle of one worker: its groups in flight, its connection and its end.

A kind of worker implements `WorkerHandle`, and a function that spawns one: worker processes with pipes, for example.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from socket import socket
from time import monotonic
from typing import TYPE_CHECKING, Final, Protocol

from hooktrainer.rollout.workers.messages import Capacity
from hooktrainer.rollout.workers.worker_spans import WorkerSpans

if TYPE_CHECKING:
    from hooktrainer.ports import Floats, Group
    from hooktrainer.rollout.workers.messages import PackedError


class WorkerHandle(ABC):
    """A worker as its pool sees it. Methods of the pool's threads and of the loop's thread may overlap."""

    def __init__(self, number: int, restarts: int) -> None:
        self.number: Final = number
        self.restarts: Final = restarts
        """Number of predecessors that died."""
        self.ready = False
        self.groups: dict[int, Group] = {}
        """Groups that were sent to it and have not ended, by dispatch number."""
        self.tickets: set[int] = set()
        """Tickets of requests that it has not acknowledged."""
        self.reply: Floats | Mapping[str, int] | PackedError | None = None
        """Its reply to the last request."""
        self.capacity = Capacity(0, 0)
        """The capacity that it reported last."""
        self.spans: Final = WorkerSpans(number)
        """Converts the spans that it sends."""
        self._given = 0
        self._last_request: tuple[str, float] | None = None

    @property
    def free_capacity(self) -> int:
        """Number of groups that it could start now, in addition to those that were sent to it."""
        return self.capacity.groups - (self._given - self.capacity.received) if self.ready else 0

    @property
    def last_request(self) -> str:
        """The last message that was sent to it, and the time since then."""
        if self._last_request is None:
            return "nothing was requested from it"
        name, sent = self._last_request
        return f"its last request was {name}, {monotonic() - sent:.0f} s ago"

    def assign(self, group: Group) -> None:
        """Record that a group is sent to it."""
        self.groups[group.number] = group
        self._given += 1

    def _record_request(self, message: object) -> None:
        self._last_request = (type(message).__name__, monotonic())

    def abandon(self) -> Sequence[Group]:
        """Release the resources of a dead worker, and return its groups in flight."""
        lost = list(self.groups.values())
        self.ready = False
        self.groups.clear()
        self.tickets.clear()
        return lost

    @property
    @abstractmethod
    def state(self) -> str:
        """Whether it is running, as the end of a sentence."""

    @property
    @abstractmethod
    def was_killed(self) -> bool:
        """Whether it was killed, so that another one in its place may succeed."""

    @property
    @abstractmethod
    def advice(self) -> str:
        """What the user can do about how it ended."""

    @abstractmethod
    def send(self, message: object, seconds: float | None = None) -> bool:
        """Send a message; return False if that would block for `seconds`. For a dead worker, return True."""

    @abstractmethod
    def received(self) -> Iterator[object]:
        """Yield the messages that it sent and that were not read yet."""

    @abstractmethod
    def waitables(self) -> Sequence[Connection | socket | int]:
        """Return objects that become readable when it sends a message or dies."""

    @abstractmethod
    def is_dead(self, seconds: float | None = 0.0) -> bool:
        """Return whether it has ended, after waiting for at most `seconds`."""

    @abstractmethod
    def exit_description(self) -> str:
        """Describe how it ended."""

    @abstractmethod
    def raise_if_unwatched(self) -> None:
        """Raise the error of the thread that waits for its end, if there is one."""

    @abstractmethod
    def hang_up(self) -> None:
        """Request that it ends, without blocking."""

    @abstractmethod
    def kill(self) -> None:
        """Kill it, and all processes that it started."""

    @abstractmethod
    def sever(self) -> None:
        """Kill processes that a dead worker has started, and wake threads that are sending to it."""

    @abstractmethod
    def close(self) -> None:
        """Release the resources of a dead worker that was not replaced."""


class SpawnWorker(Protocol):
    """Starts workers of one kind."""

    def __call__(self, number: int, restarts: int) -> WorkerHandle:
        """Start the worker with this number, after so many predecessors died, and return before it is ready."""
        ...
