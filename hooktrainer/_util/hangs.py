"""Interrupt the part of a run that does not return after a signal, and end the process if that fails.

A thread learns of a signal from the wakeup file descriptor, also while the main thread is inside a native call and
cannot run the handler of the signal. It then measures how long each part of the run takes.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
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
_STOP: Final = b"\0"


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

    def interrupt(self, part: Part) -> None:
        """Interrupt this part on the main thread, unless it ended in the meantime."""
        ...

    def fail(self, error: BaseException) -> None:
        """End the run at the next safe place: the thread has failed, so no hanging part would be interrupted."""
        ...


class HangWatch:
    """A thread that does nothing until one of `signals` arrives. Create and stop it on the main thread."""

    def __init__(self, watched: Watched, signals: Collection[int]) -> None:
        self._watched = watched
        self._signals = frozenset(signals)
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._process = os.getpid()
        self._before = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        self._thread = ReportingThread(self._run, "hang-watch", watched.fail)
        self._thread.start()

    def notice(self, number: int) -> None:
        """Report a signal, in case user code replaced the wakeup file descriptor, as `asyncio` does."""
        if os.getpid() == self._process:
            with suppress(OSError):
                os.write(self._write, bytes([number]))

    def stop(self) -> None:
        """End the thread. No part is interrupted after this."""
        signal.set_wakeup_fd(self._before, warn_on_full_buffer=False)
        with suppress(BlockingIOError):  # a full pipe; the thread finds its end, unless a forked child has it open
            os.write(self._write, _STOP)
        os.close(self._write)
        self._thread.join()
        os.close(self._read)

    def forget(self) -> None:
        """Do nothing in a forked child: its signals must not be seen by the thread of the parent."""
        signal.set_wakeup_fd(-1)
        for end in (self._read, self._write):
            with suppress(OSError):
                os.close(end)

    def _run(self) -> None:
        number = self._wait_for_signal()
        spent: dict[object, float] = {}
        interrupts: dict[object, int] = {}
        since = monotonic()
        while number and not self._stopped():
            part = self._watched.part()
            passed, since = monotonic() - since, monotonic()
            spent[part.key] = seconds = spent.get(part.key, 0.0) + min(passed, _LONGEST_TICK_S)
            count = interrupts.get(part.key, 0)
            due = seconds > part.interrupt_after_s + count * part.again_after_s
            if seconds > part.exit_after_s or (due and count == MAX_INTERRUPTS):
                _exit_without(part, seconds, signal.Signals(number))
            elif due:
                interrupts[part.key] = min(count + 1, MAX_INTERRUPTS)
                self._watched.interrupt(part)

    def _wait_for_signal(self) -> int:
        """Return the first signal; 0 if the run ended without one."""
        while (number := os.read(self._read, 1)) not in (_STOP, b""):
            if number[0] in self._signals:
                return number[0]
        return 0

    def _stopped(self) -> bool:
        """Wait for a tick; return whether `stop` was called."""
        if not select.select([self._read], [], [], TICK_S)[0]:
            return False
        found = os.read(self._read, 64)
        return not found or _STOP in found


def _exit_without(part: Part, seconds: float, number: signal.Signals) -> None:
    """Exit the process. The lock of standard error may be held, so the message is written to its file."""
    if hasattr(sys, "ps1"):  # an interactive session has more to lose than a run
        return
    held = f"{part.name}: {place_of_thread(threading.main_thread())}"
    text = f"{held} did not return within {seconds:.0f} s after {number.name}; the process exits without it\n"
    try:
        os.write(2, text.encode(errors="replace"))
    finally:
        os._exit(128 + number)
