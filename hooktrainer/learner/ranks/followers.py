"""The followers as rank 0 sees them: it sends commands, and notices at once when one of them ends."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Final

import attrs

from hooktrainer._util.threads import ReportingThread, failure_of
from hooktrainer.errors import CollectiveError, HookTrainerError, RankError, add_note
from hooktrainer.learner.ranks.channel import limit_sends, receive, send

_CAUSE_S: Final = 2.0
"""Seconds to wait for the first error, after a collective failed because of it."""
_PING_S: Final = 2.0
"""Seconds for an answer of each follower to a ping."""
_CLOSING_S: Final = 5.0
"""Seconds for the followers to leave."""


@attrs.frozen(kw_only=True)
class Report:
    """The error that ended a follower."""

    text: str
    traceback: str = ""
    """Empty for an error that needs none."""
    is_consequence: bool = False
    """Whether another rank caused it: a collective failed."""


@attrs.define(eq=False)
class _Follower:
    rank: int
    connection: Connection
    is_whole: bool = True
    """Whether no message to it was cut off by an interrupt."""
    pings: int = 0
    """Number of pings that it answered."""
    report: Report | None = None
    has_ended: bool = False

    @property
    def error(self) -> RankError | None:
        """The error that ended the follower; None while it runs."""
        if self.report is None:
            text = f"rank {self.rank} ended without a message; it may have been killed, as when memory runs out"
            return RankError(text) if self.has_ended else None
        error = RankError(f"rank {self.rank} failed: {self.report.text}")
        if self.report.traceback:
            add_note(error, self.report.traceback)
        return error

    @property
    def is_cause(self) -> bool:
        """Whether the follower ended for a reason of its own."""
        return self.has_ended if self.report is None else not self.report.is_consequence

    def send(self, message: object) -> None:
        self.is_whole = False
        send(self.connection, message)
        self.is_whole = True


class Followers:
    """All ranks but rank 0. Commands are sent by the main thread; a thread listens for errors."""

    def __init__(self, connections: Mapping[int, Connection], *, timeout_s: float) -> None:
        self._followers = [_Follower(rank, connections[rank]) for rank in sorted(connections)]
        for follower in self._followers:
            limit_sends(follower.connection, timeout_s)
        self._changed = threading.Condition()
        self._failure: HookTrainerError | None = None
        self._pings = 0
        self._closing = False
        self._on_failure: Callable[[HookTrainerError], None] = lambda _: None
        self._stopped, self._stop = Pipe(duplex=False)
        self._thread = ReportingThread(self._listen, "rank-watch", self._fail)
        self._thread.start()

    @property
    def size(self) -> int:
        """Number of ranks, with rank 0."""
        return len(self._followers) + 1

    @property
    def closed(self) -> bool:
        """Whether the followers were told to leave."""
        return self._closing

    def on_failure(self, action: Callable[[HookTrainerError], None]) -> None:
        """Call `action` on another thread with the error of the first follower that ends."""
        self._on_failure = action

    def call(self, method: str, *arguments: object) -> None:
        """Let each follower call a method of its learner. Raises `RankError` if one has ended."""
        self.call_each(method, [arguments] * len(self._followers))

    def call_each(self, method: str, arguments: Iterable[tuple[object, ...]]) -> None:
        """Let each follower, by rank, call a method of its learner with arguments of its own."""
        for follower, own in zip(self._followers, arguments, strict=True):
            self._send(follower, ("call", method, own))

    def set(self, name: str, value: object) -> None:
        """Let each follower set an attribute of its learner."""
        for follower in self._followers:
            self._send(follower, ("set", name, value))

    @contextmanager
    def collective(self) -> Iterator[None]:
        """Raise the error of the follower that made a collective within the block fail."""
        try:
            yield
        except CollectiveError as error:
            raise self._cause() or error from None

    def check(self) -> None:
        """Raise the error of the first follower that ended."""
        with self._changed:
            if self._failure is not None:
                raise self._failure

    def missing(self) -> HookTrainerError | None:
        """Return an error if a follower has ended, or does not answer a ping within 2 s."""
        with self._changed:
            self._pings += 1
        asked = [follower for follower in self._followers if follower.is_whole]
        for follower in asked:
            with suppress(OSError):  # noticed by the thread
                follower.send(("ping", self._pings))
        with self._changed:
            self._changed.wait_for(
                lambda: self._failure is not None or all(one.pings == self._pings for one in asked), _PING_S
            )
            silent = [str(follower.rank) for follower in asked if follower.pings != self._pings]
            if self._failure is None and silent:
                self._failure = RankError(f"rank {', '.join(silent)} did not answer rank 0 within {_PING_S:g} s")
            return self._failure

    def close(self) -> None:
        """Let all followers leave, and end the thread. Later calls do nothing."""
        with self._changed:
            if self._closing:
                return
            self._closing = True
        whole = [follower for follower in self._followers if follower.is_whole]
        for follower in whole:
            with suppress(OSError):  # it has ended
                follower.send(("end",))
        with self._changed:
            self._changed.wait_for(lambda: all(follower.has_ended for follower in whole), _CLOSING_S)
        self._stop.send_bytes(b"\0")
        self._thread.join()
        self._stop.close()
        self._stopped.close()
        for follower in self._followers:
            follower.connection.close()

    def _send(self, follower: _Follower, message: object) -> None:
        self.check()
        try:
            follower.send(message)
        except OSError as error:
            text = f"rank {follower.rank} takes no more commands: {os.strerror(error.errno or 0)}"
            raise self._cause() or RankError(text) from None

    def _cause(self) -> HookTrainerError | None:
        """Wait a moment for the error of the follower that ended first."""
        with self._changed:
            self._changed.wait_for(lambda: self._failure is not None, _CAUSE_S)
            self._failure = self._failure or self._first_error(may_wait=False)
            return self._failure

    def _listen(self) -> None:
        """Read the messages of all followers until they have left, or rank 0 leaves."""
        running = {follower.connection: follower for follower in self._followers}
        while running:
            undecided = any(follower.report is not None for follower in self._followers) and self._failure is None
            ready = wait([self._stopped, *running], _CAUSE_S / 2 if undecided else None)
            if self._stopped in ready:
                return
            with self._changed:
                for connection in ready:
                    assert isinstance(connection, Connection)
                    if self._read(running[connection]):
                        del running[connection]
                failure = (
                    None if self._closing or self._failure is not None else self._first_error(may_wait=bool(ready))
                )
                self._failure = failure or self._failure
                self._changed.notify_all()
            if failure is not None:
                self._on_failure(failure)

    def _read(self, follower: _Follower) -> bool:
        """Read a message. Return whether the follower has ended."""
        try:
            match receive(follower.connection):
                case Report() as report:
                    follower.report = report
                case int() as answered:
                    follower.pings = answered
        except (OSError, EOFError):
            follower.has_ended = True
        return follower.has_ended

    def _first_error(self, *, may_wait: bool) -> RankError | None:
        """Return the error that ended a follower first. If it is a consequence, wait once for its cause."""
        ended = [follower for follower in self._followers if follower.error is not None]
        causes = [follower for follower in ended if follower.is_cause]
        return next((follower.error for follower in causes or ended if causes or not may_wait), None)

    def _fail(self, error: BaseException) -> None:
        """End the run: no thread would notice the end of a follower."""
        failure = failure_of(error)
        with self._changed:
            self._failure = self._failure or failure
            for follower in self._followers:
                follower.has_ended = True  # nobody waits for it
            self._changed.notify_all()
        self._on_failure(failure)
