"""SIGINT, SIGTERM and SIGHUP: the first signal ends a run at the next safe place, or interrupts a long wait.

A safe place is between two handlers, where no row is half written and no weight sync is half done. If the run reaches
none within `PATIENCE_S` (an empty buffer, a long validation), the running code is interrupted. The shutdown that
follows is interrupted only by a second SIGINT.
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
"""Seconds to reach a safe place, before the running code is interrupted."""
HANDLED: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Aborted(KeyboardInterrupt):
    """A second SIGINT: exit at once, without a clean shutdown."""


class Mode(Enum):
    """The effect of the first signal."""

    AT_ONCE = auto()
    """Raise it at once: no run is in progress."""
    SOON = auto()
    """Raise it at the next safe place of the run, or after `PATIENCE_S`."""
    HELD = auto()
    """Raise it after the shutdown that is in progress."""


class Interrupts:
    """The signals received on the main thread since the handlers were installed."""

    def __init__(self) -> None:
        self.number: signal.Signals | None = None
        """The first signal; None before it."""
        self.raised: BaseException | None = None
        """The last exception raised for that signal."""
        self.mode = Mode.AT_ONCE
        self._early: list[BaseException] = []
        self._ctrl_c = 0
        self._overdue = False
        self._alarm: threading.Timer | None = None

    def check(self) -> None:
        """Mark a safe place: end the run if a signal was received, even if its exception was caught before."""
        if self.number is not None and self.mode is Mode.SOON:
            self.raise_it()

    def note(self, error: BaseException) -> None:
        """Record an error that is about to end a run, with its order relative to the first signal."""
        if self.number is None and not self.came_before_signals(error):
            self._early.append(error)

    def came_before_signals(self, error: BaseException) -> bool:
        """Return whether this error was recorded before the first signal; if so, the error ended the run."""
        return any(error is early for early in self._early)

    def end_by(self, error: BaseException) -> BaseException:
        """Return the exception that ends the run: that of the first signal if it came before `error`, else `error`."""
        self.note(error)
        if self.number is None or self.came_before_signals(error):
            return error
        return self.raised or self.error(self.number)

    def raise_it(self) -> None:
        """Raise the exception of the first signal, if there was one."""
        if self.number is not None:
            self.raised = self.error(self.number)
            raise self.raised

    @staticmethod
    def error(number: signal.Signals) -> BaseException:
        """Return the exception of a signal: KeyboardInterrupt for SIGINT, else SystemExit with 128 + its number."""
        return KeyboardInterrupt(number.name) if number is signal.SIGINT else SystemExit(128 + number)

    def handle(self, number: int, _: FrameType | None) -> None:
        """Handle a signal; this is the handler that Python calls."""
        if self._overdue:  # sent by the alarm, to interrupt a wait
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

    def cancel_alarm(self) -> None:
        """Cancel the alarm, and return once it can no longer fire."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm.join()
            self._alarm = None

    def _wake(self, number: signal.Signals) -> None:
        """Send the signal again from the thread of the alarm, because only a signal interrupts a wait."""
        self._overdue = True
        signal.pthread_kill(threading.main_thread().ident or 0, number)


_installed: Interrupts | None = None


@contextmanager
def handled() -> Iterator[Interrupts]:
    """Handle the signals until the block ends. A run within a run shares the handlers of the outer one.

    On other threads no signal is handled, because Python delivers signals to the main thread only. A signal that this
    process was started to ignore (`nohup`, background jobs) stays ignored. At the end the previous handlers are
    restored. A previous handler that is not the default one of Python is then called for the signal that was received.
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
    global _installed  # noqa: PLW0603 (handlers belong to the process)
    interrupts = Interrupts()
    found = {number: signal.getsignal(number) for number in HANDLED}
    before: dict[signal.Signals, Any] = {
        number: handler for number, handler in found.items() if handler not in (signal.SIG_IGN, None)
    }
    try:
        _installed = interrupts
        for number in before:
            signal.signal(number, interrupts.handle)
        yield interrupts
    finally:
        interrupts.mode = Mode.HELD  # later signals are raised below
        interrupts.cancel_alarm()
        for number, handler in before.items():
            signal.signal(number, handler)
        _installed = None
        if interrupts.number is not None:
            theirs = before[interrupts.number]
            if callable(theirs) and theirs is not signal.default_int_handler:
                theirs(interrupts.number, None)
    if interrupts.raised is None:
        interrupts.raise_it()
