"""Interrupt the part of a run that does not return after a signal, and end the process if that fails.

A thread learns of a signal from the wakeup file descriptor, also while the main thread is inside a native call and
cannot run the handler of the signal. It then measures how long each part of the run takes.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections import defaultdict
from collections.abc import Collection
from contextlib import suppress
from time import monotonic
from typing import Final, Protocol

import attrs

from hooktrainer._util.places import place_of_thread
from hooktrainer._util.threads import ReportingThread

TICK_S: Final = 0.05
_LONGEST_TICK_S: Final = 0.5
"""Limit of the time that is counted at once: a process that was stopped has not used its time."""
MAX_INTERRUPTS: Final = 2
"""Number of times that a part is interrupted, before the process exits without it."""
_REMIND_AFTER_S: Final = 2.0
"""Seconds before a native call that cannot be interrupted is named."""


@attrs.frozen
class Part:
    """The part of a run that the main thread is in, with its limits in seconds after a signal."""

    key: object
    """Identity of the part; parts with the same key share their limits."""
    name: str
    interrupt_after_s: float
    again_after_s: float
    """Time between two interrupts of the part, in which it cleans up."""
    exit_after_s: float
    """Limit for a part that cannot be interrupted."""


class Watched(Protocol):
    """What the thread asks about the run, and how it interrupts it."""

    def part(self) -> Part:
        """Return the part that the main thread is in."""
        ...

    @property
    def number(self) -> signal.Signals | None:
        """The first signal that the main thread has handled; None before it."""
        ...

    @property
    def unheard(self) -> bool:
        """Whether a signal or an interrupt has not reached the main thread, which is inside a native call."""
        ...

    def interrupts_of(self, part: Part) -> int:
        """Return how often this part was interrupted. An interrupt counts once it has reached the main thread."""
        ...

    def wake(self) -> None:
        """Let the main thread handle a signal that has not reached it."""
        ...

    def interrupt(self, part: Part) -> None:
        """Interrupt this part on the main thread, unless it ended in the meantime."""
        ...

    def fail(self, error: BaseException) -> None:
        """End the run: the thread has failed, so no hanging part would be interrupted."""
        ...


class HangWatch:
    """A thread that does nothing until one of `signals` arrives. Create and stop it on the main thread."""

    def __init__(self, watched: Watched, signals: Collection[signal.Signals]) -> None:
        self._watched = watched
        self._signals = frozenset(signals)
        self._over = threading.Event()
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._files = {end: _file_of(end) for end in (self._read, self._write)}
        self._before = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        self._thread = ReportingThread(self._run, "hang-watch", self._fail)
        self._thread.start()

    def notice(self, number: int) -> None:
        """Report a signal, in case user code replaced the wakeup file descriptor, as `asyncio` does."""
        if self._is_open(self._write):
            with suppress(BlockingIOError):  # a full pipe has woken the thread
                os.write(self._write, bytes([number]))

    def stop(self) -> None:
        """End the thread. No part is interrupted after this."""
        self._over.set()
        with suppress(OSError, ValueError):  # user code has closed the file descriptor that was set before
            signal.set_wakeup_fd(self._before, warn_on_full_buffer=False)
        self.notice(0)  # wakes the thread
        self._thread.join()
        self._close()

    def forget(self) -> None:
        """Do nothing in a forked child: its signals must not be seen by the thread of the parent."""
        signal.set_wakeup_fd(-1)
        self._close()

    def _close(self) -> None:
        for end in self._files:
            if self._is_open(end):
                os.close(end)

    def _is_open(self, end: int) -> bool:
        """Return whether user code has not closed this end of the pipe; its number may be that of another file."""
        return _file_of(end) == self._files[end]

    def _is_handled(self, number: int) -> bool:
        """Return whether the run handles this signal, and not a handler that user code has set since then."""
        return getattr(signal.getsignal(number), "__self__", None) is self._watched

    def _fail(self, error: BaseException) -> None:
        """End the run at the next safe place, or interrupt it, since no other thread does that any more."""
        self._watched.fail(error)
        if not self._over.wait(self._watched.part().interrupt_after_s):
            self._watched.interrupt(self._watched.part())

    def _run(self) -> None:
        number = self._wait_for_signal()
        spent = defaultdict[object, float](float)  # seconds in each part after the signal
        heard = defaultdict[object, float](float)  # of these, the seconds in which the part could react
        since, reminded, next_wake = monotonic(), False, 0.0
        while number is not None and not self._over.wait(TICK_S):
            part, unheard = self._watched.part(), self._watched.unheard
            passed, since = min(monotonic() - since, _LONGEST_TICK_S), monotonic()
            spent[part.key] += passed
            heard[part.key] += 0 if unheard else passed
            count = self._watched.interrupts_of(part)
            due = not unheard and heard[part.key] > part.interrupt_after_s + count * part.again_after_s
            if self._watched.number is None and spent[part.key] > next_wake:
                next_wake = 2 * spent[part.key]  # a native call need not be disturbed in every tick
                self._watched.wake()
            if spent[part.key] > part.exit_after_s or (due and count == MAX_INTERRUPTS):
                _exit_without(part, spent[part.key], number)
            elif due:
                self._watched.interrupt(part)
            elif unheard and not reminded and spent[part.key] > part.interrupt_after_s + _REMIND_AFTER_S:
                reminded = True
                limit = f"{number.name} ends the process after {part.exit_after_s:g} s"
                _write(f"{_held(part)} cannot be interrupted; {limit}\n")

    def _wait_for_signal(self) -> signal.Signals | None:
        """Return the first signal; None if the run ended without one."""
        while not self._over.is_set() and (found := os.read(self._read, 1)):
            if found[0] in self._signals and self._is_handled(found[0]):
                return signal.Signals(found[0])
        while not self._over.wait(TICK_S):  # user code has closed the pipe: only handled signals are seen
            if (number := self._watched.number) is not None:
                return number
        return None


def _file_of(descriptor: int) -> tuple[int, int] | None:
    """Return the identity of an open file; None if it is closed."""
    try:
        found = os.fstat(descriptor)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _held(part: Part) -> str:
    return f"{part.name}: {place_of_thread(threading.main_thread())}"


def _exit_without(part: Part, seconds: float, number: signal.Signals) -> None:
    if hasattr(sys, "ps1"):  # an interactive session has more to lose than a run
        return
    try:
        waited = f"did not return within {seconds:.0f} s after {number.name}"
        _write(f"{_held(part)} {waited}; the process exits without it\n")
    finally:
        os._exit(128 + number)


def _write(text: str) -> None:
    """Write to the file of standard error, since the lock of the stream may be held."""
    with suppress(OSError):
        os.write(2, text.encode(errors="replace"))
