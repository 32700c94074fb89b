"""SIGINT, SIGTERM and SIGHUP: the first signal ends a run at the next safe place, or interrupts a long wait.

A safe place is between two handlers, where no row is half written and no weight sync is half done. If the run reaches
none within `PATIENCE_S` (an empty buffer, a long validation), the running code is interrupted. A second SIGINT
interrupts the shutdown that follows. So does `hangs`, for a part of the shutdown that exceeds its limit.
"""

from __future__ import annotations

import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum, auto
from time import sleep
from types import FrameType
from typing import Any, Final

import attrs

from hooktrainer._util.exit_limit import limit_exit
from hooktrainer._util.forks import HANDLED, Original, call_in_forks
from hooktrainer._util.hangs import HangWatch, Part
from hooktrainer._util.places import place
from hooktrainer._util.threads import failure_of
from hooktrainer.errors import HookTrainerError, HungError

PATIENCE_S: Final = 0.5
"""Seconds to reach a safe place, before the running code is interrupted."""
CLOSING_S: Final = 4.0
"""Default limit in seconds for each part of the shutdown that follows a signal."""
_GRACE_S: Final = 0.5
"""Seconds beyond its limit for a part that ends at its limit without an interrupt."""
_EXIT_S: Final = 2.0
"""Seconds that a part of the shutdown may take to react to being interrupted."""


class Aborted(KeyboardInterrupt):
    """A second SIGINT: exit at once, without a clean shutdown."""


def closing_part(key: object, name: str, limit_s: float = CLOSING_S) -> Part:
    """Return a part of the shutdown."""
    return Part(key, name, limit_s + _GRACE_S, _GRACE_S, limit_s + _EXIT_S)


@attrs.frozen
class Closing:
    """The shutdown of a run."""

    part: Callable[[], Part] = lambda: closing_part(None, "the end of the run")
    """Returns the part of the shutdown that is in progress."""
    longest_s: float = CLOSING_S
    """The longest limit of a part. Before the shutdown, a native call that cannot be interrupted has this limit."""


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
        """The first signal that was handled; None before it."""
        self.raised: BaseException | None = None
        """The last exception raised for that signal."""
        self.mode = Mode.AT_ONCE
        self.closing = Closing()
        self.process: Final = Original()
        self.due = False
        """Whether `check` has something to do."""
        self.previous: Mapping[signal.Signals, Any] = {}
        """The handlers before the run."""
        self.interrupted = ""
        """The method that was interrupted before the shutdown because it reached no safe place."""
        self._failure: HookTrainerError | None = None
        self._early: list[BaseException] = []
        self._ctrl_c = 0
        self._sent: tuple[Part, signal.Signals] | None = None
        """The interrupt that was sent to the main thread and has not reached it."""
        self._reached = Counter[object]()
        """Number of interrupts that have reached the main thread, by the key of the part."""

    def check(self) -> None:
        """Mark a safe place: end the run if a signal was received, even if its exception was caught before."""
        self.process.exit_if_copied()
        self.raise_failure()
        if self.number is not None and self.mode is Mode.SOON:
            self.raise_it()

    def fail(self, error: BaseException) -> None:
        """End the run at the next safe place: the current thread cannot continue."""
        self._failure, self.due = failure_of(error), True

    def end_loop(self, error: HookTrainerError) -> None:
        """End the loop of a run from another thread: at the next safe place, or by an interrupt after `PATIENCE_S`."""
        if self.mode is Mode.SOON:
            self._failure, self.due = error, True
            sleep(PATIENCE_S)
            if self._failure is error and self.mode is Mode.SOON:
                self.interrupt(self.part())

    def raise_failure(self) -> None:
        """Raise the error of `fail` once."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def note(self, error: BaseException, *, caused_signal: bool = False) -> None:
        """Record an error that is about to end a run, with its order relative to the first signal.

        One that made another process send the signal came before it.
        """
        if (self.number is None or caused_signal) and not self.came_before_signals(error):
            self._early.append(error)

    def came_before_signals(self, error: BaseException) -> bool:
        """Return whether this error was recorded before the first signal; if so, the error ended the run."""
        return any(error is early for early in self._early)

    def end_by(self, error: BaseException) -> BaseException:
        """Return the exception that ends the run: that of the first signal if it came before `error`, else `error`.

        The error of `fail` is no longer raised: it would end the shutdown.
        """
        self._failure = None
        self.note(error)
        if self.number is None or self.came_before_signals(error):
            return error
        return self.raised or _error_of(self.number)

    def raise_it(self) -> None:
        """Raise the exception of the first signal, if there was one."""
        if self.number is not None:
            self.raised = _error_of(self.number)
            raise self.raised

    def part(self) -> Part:
        """Return the part of the run that is in progress."""
        if self.mode is Mode.HELD:
            return self.closing.part()
        limit = PATIENCE_S if self.mode is Mode.SOON else CLOSING_S
        return Part(self.mode, "the run", limit, CLOSING_S, max(self.closing.longest_s, 2 * CLOSING_S))

    @property
    def unheard(self) -> bool:
        """Whether a signal or an interrupt has not reached the main thread, which is inside a native call."""
        return self.number is None or self._sent is not None

    def interrupts_of(self, part: Part) -> int:
        """Return how often this part was interrupted."""
        return self._reached[part.key]

    def wake(self) -> None:
        """Let the main thread handle a signal that arrived just before its wait, or on another thread.

        SIGTERM is sent: it has no effect after the first signal, and Python handles it after SIGHUP and SIGINT.
        """
        harmless = signal.SIGTERM if signal.SIGTERM in self.previous else next(iter(self.previous))
        signal.pthread_kill(threading.main_thread().ident or 0, harmless)

    def interrupt(self, part: Part) -> None:
        """Send a signal from another thread, because only a signal interrupts a wait of the main thread."""
        number = self.number or next(iter(self.previous), None)
        if self._sent is None and number is not None:
            self._sent = part, number
            signal.pthread_kill(threading.main_thread().ident or 0, number)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal; this is the handler that Python calls."""
        if (sent := self._sent) is not None and sent[1] == number:
            self._sent = None
            if sent[0].key == self.part().key:
                self._interrupt(sent[0], frame)
            return
        if number == signal.SIGINT:
            self._ctrl_c += 1
            if self._ctrl_c > 1:
                raise Aborted
        self.number = self.number or signal.Signals(number)
        self.due = True
        if _watch is not None:
            _watch.notice(number)
        if self.mode is Mode.AT_ONCE and not self._early:  # otherwise an error is about to end the process
            self.raise_it()

    def _interrupt(self, part: Part, frame: FrameType | None) -> None:
        self._reached[part.key] += 1
        if self.mode is not Mode.HELD:
            self.interrupted = place(frame)
            self.raise_failure()
            self.raise_it()
        elif self.number is not None:
            if self._reached[part.key] > 1:  # code that catches every `Exception` may try again for ever
                self.raise_it()
            limit = f"{part.interrupt_after_s:g} s after {self.number.name}"
            raise HungError(f"{part.name}: {place(frame)} did not return within {limit} and was interrupted")


def _error_of(number: signal.Signals) -> BaseException:
    """Return the exception of a signal: KeyboardInterrupt for SIGINT, else SystemExit with 128 + its number."""
    return KeyboardInterrupt(number.name) if number is signal.SIGINT else SystemExit(128 + number)


_installed: Interrupts | None = None
_watch: HangWatch | None = None
_elsewhere: Final[list[Interrupts]] = []
"""Those of runs on other threads, which handle no signal."""


def _restore(handlers: Mapping[signal.Signals, Any]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler)


def _start_copy() -> None:
    """In a forked process: end every run at its next check, and restore the handlers before the run.

    The original must not see the signals of the copy.
    """
    global _installed, _watch  # noqa: PLW0603 (a run of its own that the process starts has handlers of its own)
    for interrupts in (*_elsewhere, *([_installed] if _installed else [])):
        interrupts.due = True
        _restore(interrupts.previous)
    if _watch is not None:
        _watch.forget()
    _installed = _watch = None


call_in_forks(_start_copy)


@contextmanager
def handled() -> Iterator[Interrupts]:
    """Handle the signals until the block ends. A run within a run shares the handlers of the outer one.

    On other threads no signal is handled, because Python delivers signals to the main thread only. A signal that this
    process was started to ignore (`nohup`, background jobs) stays ignored. At the end the previous handlers are
    restored. A previous handler that is not the default one of Python is then called for the signal that was received.
    """
    if threading.current_thread() is not threading.main_thread():
        interrupts = Interrupts()
        _elsewhere.append(interrupts)
        try:
            yield interrupts
        finally:
            _elsewhere.remove(interrupts)
    elif _installed is not None:
        yield _installed
    else:
        with _install() as interrupts:
            yield interrupts


@contextmanager
def _install() -> Iterator[Interrupts]:
    global _installed, _watch  # noqa: PLW0603 (handlers belong to the process)
    interrupts = Interrupts()
    found = {number: signal.getsignal(number) for number in HANDLED}
    before = {number: handler for number, handler in found.items() if handler not in (signal.SIG_IGN, None)}
    interrupts.previous = before
    _watch = HangWatch(interrupts, before)
    try:
        _installed = interrupts
        for number in before:
            signal.signal(number, interrupts._handle)
        yield interrupts
    finally:
        interrupts.mode = Mode.HELD  # later signals are raised below
        watch, _watch = _watch, None
        if watch is not None:  # None in a copy
            watch.stop()
            _installed = None
            _restore(interrupts.previous)
            if interrupts.number is not None:
                limit_exit(128 + interrupts.number)
                _call_previous(before[interrupts.number], interrupts.number)
    if interrupts.raised is None:
        interrupts.raise_it()
        interrupts.raise_failure()


def _call_previous(handler: Any, number: signal.Signals) -> None:
    """Call the handler of a script for the signal that was received, unless it is that of Python."""
    if callable(handler) and handler is not signal.default_int_handler:
        handler(number, None)
