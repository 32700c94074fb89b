"""Show where every thread stands while a step takes too long."""

from __future__ import annotations

import sys
import threading
import traceback
from contextlib import suppress
from time import monotonic

import attrs
from attrs.validators import ge, gt

from hooktrainer import Plugin, Priority, on
from hooktrainer.events import FitEnd, FitStart, StepStart


@attrs.define(kw_only=True)
class Watchdog(Plugin):
    """Print the stack of every thread to standard error while a step hangs; the run goes on.

    The start until the first step, and the end of the run, are watched as steps are. A call that holds Python's lock
    is shown once it lets go.
    """

    timeout_s: float = attrs.field(default=600.0, validator=gt(0))
    """Seconds that a step may take; the stacks are printed again after each further time of this length."""

    max_reports: int = attrs.field(default=3, validator=ge(1))
    """Times that the stacks of one step are printed."""

    _where: tuple[str, float] = attrs.field(default=("", 0.0), init=False, repr=False)  # read by the other thread
    _changed: threading.Condition = attrs.field(factory=threading.Condition, init=False, repr=False, eq=False)
    _thread: threading.Thread | None = attrs.field(default=None, init=False, repr=False)

    @on(FitStart, priority=Priority.PREPARE)
    def begin(self, _event: FitStart) -> None:
        """Start to watch."""
        self._where = ("the start of the run", monotonic())
        # A daemon, so that it never keeps the process: it waits, and holds nothing that others need.
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._thread.start()

    @on(StepStart, priority=Priority.PREPARE)
    def step(self, event: StepStart) -> None:
        """A new step, with its own time; nobody is woken for it."""
        self._where = (f"step {event.step}", monotonic())

    @on(FitEnd, priority=Priority.PREPARE)
    def ending(self, _event: FitEnd) -> None:
        """Watch the end of the run."""
        self._where = ("the end of the run", monotonic())

    @on(FitEnd, priority=Priority.CLEANUP)
    def stop(self, _event: FitEnd) -> None:
        """Stop to watch."""
        thread, self._thread = self._thread, None
        with self._changed:
            self._changed.notify_all()
        if thread is not None:
            thread.join()

    def _watch(self) -> None:
        place, reports = self._where, 0
        while not self._over(place[1] + (reports + 1) * self.timeout_s):
            if self._where is not place:
                place, reports = self._where, 0
                continue
            reports += 1
            if reports <= self.max_reports:
                with suppress(OSError, ValueError):  # nobody reads it
                    sys.stderr.write(self._report(*place))
                    sys.stderr.flush()

    def _over(self, due: float) -> bool:
        """Wait until then; whether the run is over."""
        with self._changed:
            return self._changed.wait_for(lambda: self._thread is None, max(0.0, due - monotonic()))

    def _report(self, what: str, since: float) -> str:
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        frames = {ident: frame for ident, frame in sys._current_frames().items() if ident != threading.get_ident()}
        taken = f"{what} has taken {monotonic() - since:.1f} s, more than timeout_s = {self.timeout_s:g}"
        lines = [f"watchdog: {taken}; {len(frames)} threads:\n"]
        for ident, frame in frames.items():
            lines += [f"thread {names.get(ident, ident)}:\n", *traceback.format_stack(frame)]
        return "".join(lines)
