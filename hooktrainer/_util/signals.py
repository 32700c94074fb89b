"""SIGINT, SIGTERM and SIGHUP: the first one ends a run at a safe place, or, if none comes soon, out of any wait.

A safe place is between two handlers, where nothing is half done: no row half written, no version half moved. Whoever
waits longer than `PATIENCE_S` (an empty buffer, a long validation) is broken off where it stands. From then on the
run is ending, and nothing disturbs that but a second SIGINT.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum, auto
from types import FrameType
from typing import Any, Final

PATIENCE_S: Final = 0.5
"""Seconds to reach a safe place, before what runs is broken off."""
HANDLED: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Aborted(KeyboardInterrupt):
    """A second SIGINT: leave at once, and end nothing in order."""


class Mode(Enum):
    """What a first signal does."""

    AT_ONCE = auto()
    """Outside of a run there is nothing that could be torn."""
    SOON = auto()
    """A run goes on, and is broken off at the next safe place or after `PATIENCE_S`."""
    HELD = auto()
    """A run is ending; the signal is raised afterwards."""


class Interrupts:
    """What was heard on the main thread since the handlers were installed."""

    def __init__(self) -> None:
        self.number: signal.Signals | None = None
        """The first signal; None as long as there was none."""
        self.raised: BaseException | None = None
        """What was raised for it last."""
        self.mode = Mode.AT_ONCE
        self._early: list[BaseException] = []
        self._ctrl_c = 0
        self._overdue = False
        self._alarm: threading.Timer | None = None

    def check(self) -> None:
        """A safe place: end the run here if a signal has come; also if somebody has caught it before."""
        if self.number is not None and self.mode is Mode.SOON:
            self.raise_it()

    def note(self, error: BaseException) -> None:
        """An error is about to end a run: it came first, unless a signal did."""
        if self.number is None and not self.came_before_signals(error):
            self._early.append(error)

    def came_before_signals(self, error: BaseException) -> bool:
        """Whether no signal had come yet when this error was noted; then it is what ended the run."""
        return any(error is early for early in self._early)

    def end_by(self, error: BaseException) -> BaseException:
        """What ends the run, now that this broke: the first signal, if it came first, else this."""
        self.note(error)
        if self.number is None or self.came_before_signals(error):
            return error
        return self.raised or self.error(self.number)

    def raise_it(self) -> None:
        """Raise the first signal, if there was one."""
        if self.number is not None:
            self.raised = self.error(self.number)
            raise self.raised

    @staticmethod
    def error(number: signal.Signals) -> BaseException:
        """A signal as an exception: KeyboardInterrupt for SIGINT, else SystemExit with 128 + its number."""
        return KeyboardInterrupt(number.name) if number is signal.SIGINT else SystemExit(128 + number)

    def hear(self, number: int, _: FrameType | None) -> None:
        """The handler."""
        if self._overdue:  # sent by the alarm, to get out of a wait
            self._overdue = False
            self.check()
            return
        if number == signal.SIGINT:
            self._ctrl_c += 1
            if self._ctrl_c > 1:
                raise Aborted
        self.number = self.number or signal.Signals(number)
        if self.mode is Mode.AT_ONCE:
            self.raise_it()
        elif self.mode is Mode.SOON and (self._alarm is None or not self._alarm.is_alive()):
            self._alarm = threading.Timer(PATIENCE_S, self._wake, [self.number])
            self._alarm.daemon = True
            self._alarm.start()

    def settle(self) -> None:
        """Return once no alarm can go off any more."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm.join()
            self._alarm = None

    def _wake(self, number: signal.Signals) -> None:
        """Signal once more, since only a signal ends a wait; on the thread of the alarm."""
        self._overdue = True
        signal.pthread_kill(threading.main_thread().ident or 0, number)


_installed: Interrupts | None = None


@contextmanager
def handled() -> Iterator[Interrupts]:
    """Handle the signals until the block ends; a run within a run shares its handlers.

    Nothing is handled off the main thread, where Python delivers no signals; nor a signal that whoever started this
    process wants to be ignored (`nohup`, background jobs). Handlers are put back, and one that is not Python's
    own is called then for the signal that came.
    """
    if threading.current_thread() is not threading.main_thread():
        yield Interrupts()
    elif _installed is not None:
        yield _installed
    else:
        with _install() as interrupts:
            yield interrupts


@contextmanager
def _install() -> Iterator[Interrupts]:
    global _installed  # noqa: PLW0603 (as the handlers themselves, there is one in a process)
    interrupts = Interrupts()
    found = {number: signal.getsignal(number) for number in HANDLED}
    before: dict[signal.Signals, Any] = {
        number: handler for number, handler in found.items() if handler not in (signal.SIG_IGN, None)
    }
    try:
        _installed = interrupts
        for number in before:
            signal.signal(number, interrupts.hear)
        yield interrupts
    finally:
        interrupts.mode = Mode.HELD  # what comes from here on is raised below
        interrupts.settle()
        for number, handler in before.items():
            signal.signal(number, handler)
        _installed = None
        if interrupts.number is not None:
            theirs = before[interrupts.number]
            if callable(theirs) and theirs is not signal.default_int_handler:
                theirs(interrupts.number, None)
    if interrupts.raised is None:
        interrupts.raise_it()
