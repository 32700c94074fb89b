"""Shutdown of a run: handlers are called, components are closed, and the first error of the run is raised."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Literal, TypeAlias

import attrs

from hooktrainer._util.signals import Aborted, Closing, Interrupts, Mode, handled
from hooktrainer.errors import add_error_note, line_of

Status: TypeAlias = Literal["completed", "already_done", "stopped", "interrupted", "failed"]
_LOG: Final = logging.getLogger("hooktrainer")


@attrs.frozen
class Outcome:
    """The end of the loop: its status, the reason, and the error if there was one."""

    status: Status
    """A status of `fit_end`."""
    reason: str
    failure: BaseException | None = None


@contextmanager
def interruptible(closing: Closing) -> Iterator[Interrupts]:
    """Handle signals during a run. A signal that arrives during its shutdown is raised after it."""
    with handled() as interrupts:
        before = interrupts.mode, interrupts.closing
        interrupts.mode, interrupts.closing = Mode.HELD, closing
        try:
            yield interrupts
        finally:
            interrupts.mode, interrupts.closing = before
        interrupts.raise_it()


def attempt(
    loop: Callable[[], tuple[Status, str]],
    interrupts: Interrupts,
    cause: Callable[[], Exception | None] = lambda: None,
) -> Outcome:
    """Run the loop. Only this part of a run is interrupted by the first signal.

    `cause` returns the error that made another process send the signal; if there is one, the run has failed.
    """
    try:
        interrupts.mode = Mode.SOON
        status, reason = loop()
        interrupts.mode = Mode.HELD
    except Aborted:
        raise
    except BaseException as error:  # noqa: BLE001 (raised by `finish`)
        interrupts.process.exit_if_copied(error)
        interrupts.mode = Mode.HELD
        if interrupts.interrupted:
            _LOG.warning("the run was interrupted in %s", interrupts.interrupted)
        end = interrupts.end_by(error)
        if (number := interrupts.number) is not None and not interrupts.came_before_signals(error):
            if (failure := cause()) is not None:
                interrupts.note(failure, caused_signal=True)
                return Outcome("failed", line_of(failure), failure)
            # The signal came first, so later errors are its consequence.
            if error is not end:
                _LOG.warning("after %s there was another error: %s", number.name, line_of(error))
                add_error_note(end, error, f"after {number.name}")
            return Outcome("interrupted", number.name, end)
        return Outcome("failed" if isinstance(error, Exception) else "interrupted", line_of(error), error)
    return Outcome(status, reason)


def finish(failure: BaseException | None, interrupts: Interrupts, *actions: Callable[[], None]) -> None:
    """Run every action, even if others fail. Then raise the first error of the run, or the signal if it came first.

    Errors that follow a signal are logged when they occur.
    """
    for action in actions:
        try:
            action()
        except Aborted:
            raise
        except BaseException as error:  # noqa: BLE001 (raised below)
            interrupts.process.exit_if_copied(error)
            if failure is None:
                failure = interrupts.end_by(error)
            if failure is error:
                continue
            if isinstance(failure, Exception):
                add_error_note(failure, error, "at the end of the run")
            else:  # a signal or a SystemExit, which is shown without notes
                _LOG.warning("at the end of the run there was an error: %s", line_of(error), exc_info=error)
    if failure is not None:
        raise failure
