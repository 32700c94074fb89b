"""A follower: a process that calls the methods of its learner that rank 0 names.

It ignores the signals that end a run, and leaves on the command of rank 0, or when rank 0 has ended. A thread receives
commands, so that a follower leaves also while its main thread waits in a collective.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import NoReturn

from hooktrainer._util.forks import HANDLED, exit_now
from hooktrainer._util.streams import write_stderr
from hooktrainer._util.threads import ReportingThread, failure_of
from hooktrainer.errors import CollectiveError, HookTrainerError, NonFiniteError, line_of, message_of, traceback_of
from hooktrainer.learner.policy_gradient import PolicyGradientLearner
from hooktrainer.learner.ranks.channel import receive, send
from hooktrainer.learner.ranks.followers import Report
from hooktrainer.learner.ranks.weights import require_weights


class Follower:
    """The process of a rank other than 0."""

    def __init__(self, rank: int, connection: Connection) -> None:
        self._rank, self._connection = rank, connection
        self._commands = SimpleQueue[tuple[str, str, object]]()
        self._sending = threading.Lock()

    def run(self, build: Callable[[], PolicyGradientLearner]) -> NoReturn:
        """Build the learner and follow commands, until the process exits."""
        ReportingThread(self._listen, "rank-listen", self._fail).start()
        for number in HANDLED:
            signal.signal(number, signal.SIG_IGN)  # rank 0 ends the run, and with it this process
        try:
            learner = build()
            while True:
                self._follow(learner, *self._commands.get())
        except BaseException as error:  # noqa: BLE001 (rank 0 raises it)
            self._fail(error)

    def _follow(self, learner: PolicyGradientLearner, kind: str, name: str, value: object) -> None:
        if kind == "set":
            setattr(learner, name, value)
            return
        assert isinstance(value, tuple)
        method = partial(require_weights, learner) if name == "require_weights" else getattr(learner, name)
        with suppress(NonFiniteError):  # raised on every rank, so that rank 0 ends the run
            method(*value)

    def _listen(self) -> None:
        """Receive commands, and leave when the connection closes."""
        try:
            while (message := receive(self._connection))[0] != "end":
                if message[0] == "ping":
                    self._send(message[1])
                else:
                    self._commands.put(message)
        except (OSError, EOFError):
            write_stderr(f"rank {self._rank}: rank 0 has ended, so this rank ends as well\n")
            exit_now(1)
        exit_now(0)

    def _send(self, message: object) -> None:
        with self._sending:
            send(self._connection, message)

    def _fail(self, error: BaseException) -> NoReturn:
        """Report the error to rank 0, which shows it, and exit."""
        try:
            self._send(_report(error))
        except OSError:
            write_stderr(f"rank {self._rank}: {traceback_of(error)}")
        exit_now(1)


def _report(error: BaseException) -> Report:
    if threading.current_thread() is not threading.main_thread():
        error = failure_of(error)
    cause, is_consequence = error.__cause__, isinstance(error, CollectiveError)
    if isinstance(error, HookTrainerError) and (cause is None or isinstance(cause, HookTrainerError)):
        return Report(text=message_of(error), is_consequence=is_consequence)
    return Report(text=line_of(error), traceback=traceback_of(error))
