"""Print the stack of every thread while a step takes too long."""

from __future__ import annotations

import sys
import threading
import traceback
from contextlib import suppress
from time import monotonic

import attrs
from attrs.validators import ge

from hooktrainer import Plugin, Priority, on
from hooktrainer.errors import RunError, repr_of
from hooktrainer.events import FitEnd, FitStart, StepStart
from hooktrainer.plugin import is_duration


@attrs.define(kw_only=True)
class Watchdog(Plugin):
    """Print the stack of every thread to standard error while a step hangs; the run continues.

    The start and the end of the run are watched like steps. A call that holds the GIL is printed
    once it releases it. If the watchdog thread fails, the run ends before the next step.
    """

    timeout_s: float = attrs.field(default=600.0, validator=is_duration)
    """Seconds after which a step counts as hanging; the stacks are printed again every `timeout_s` seconds."""

    max_reports: int = attrs.field(default=3, validator=ge(1))
    """Maximum number of reports for one step."""

    _where: tuple[str, float] = attrs.field(default=("", 0.0), init=False, repr=False)  # read by the other thread
    _changed: threading.Condition = attrs.field(factory=threading.Condition, init=False, repr=False, eq=False)
    _thread: threading.Thread | None = attrs.field(default=None, init=False, repr=False)
    _failure: BaseException | None = attrs.field(default=None, init=False, repr=False)

    @on(FitStart, priority=Priority.PREPARE)
    def start(self, _event: FitStart) -> None:
        """Start the watchdog thread."""
        self._where = ("the start of the run", monotonic())
        # A daemon thread does not keep the process alive; this one holds no resources of other components.
        self._thread = threading.Thread(target=self._guarded, name="watchdog", daemon=True)
        self._thread.start()

    @on(StepStart, priority=Priority.PREPARE)
    def restart_for_step(self, event: StepStart) -> None:
        """Restart the time for a new step, without waking the watchdog thread. Raises `RunError` if it failed."""
        self._raise_failure()
        self._where = (f"step {event.step}", monotonic())

    @on(FitEnd, priority=Priority.PREPARE)
    def restart_for_end(self, _event: FitEnd) -> None:
        """Restart the time for the end of the run."""
        self._where = ("the end of the run", monotonic())

    @on(FitEnd, priority=Priority.CLEANUP)
    def stop(self, _event: FitEnd) -> None:
        """Stop the watchdog thread. Raises `RunError` if it failed."""
        thread, self._thread = self._thread, None
        with self._changed:
            self._changed.notify_all()
        if thread is not None:
            thread.join()
        self._raise_failure()

    def _guarded(self) -> None:
        try:
            self._watch()
        except BaseException as error:  # noqa: BLE001 (raised by the next handler)
            self._failure = error

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise RunError(f"the thread watchdog failed: {repr_of(failure)}") from failure

    def _watch(self) -> None:
        place, reports = self._where, 0
        while not self._over(place[1] + (reports + 1) * self.timeout_s):
            if self._where is not place:
                place, reports = self._where, 0
                continue
            reports += 1
            if reports <= self.max_reports:
                with suppress(OSError, ValueError):  # standard error is closed
                    sys.stderr.write(self._report(*place))
                    sys.stderr.flush()

    def _over(self, due: float) -> bool:
        """Wait until `due`; return whether the run is over."""
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
