"""How a run ends: everyone is told, everything is closed, and the first error of the run is the one that leaves it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Final

import attrs

from hooktrainer.errors import carry
from hooktrainer.events import FitEnd, Status
from hooktrainer.interrupts import Aborted, Interrupts, Mode, handled

_LOG: Final = logging.getLogger("hooktrainer")


@attrs.frozen(kw_only=True)
class Result:
    """How a run ended."""

    status: Status
    reason: str
    step: int
    """The last complete step."""
    seconds: float

    def event(self, version: int, times: Mapping[str, float]) -> FitEnd:
        """What every plugin is told."""
        summary = MappingProxyType({"steps": float(self.step), "seconds": self.seconds, **times})
        return FitEnd(status=self.status, reason=self.reason, step=self.step, version=version, summary=summary)


@attrs.frozen
class Outcome:
    """How the loop was left."""

    status: Status
    reason: str
    failure: BaseException | None = None

    def result(self, step: int, seconds: float) -> Result:
        """The same, with the last complete step and the time that it took."""
        return Result(status=self.status, reason=self.reason, step=step, seconds=seconds)


@contextmanager
def interruptible() -> Iterator[Interrupts]:
    """Handle signals; one that comes while the run is ending is raised once it has ended."""
    with handled() as interrupts:
        before, interrupts.mode = interrupts.mode, Mode.HELD
        try:
            yield interrupts
        finally:
            interrupts.mode = before
        interrupts.raise_it()


def attempt(loop: Callable[[], tuple[Status, str]], interrupts: Interrupts) -> Outcome:
    """Run the loop, the only part of a run that the first signal breaks off."""
    try:
        interrupts.mode = Mode.SOON
        status, reason = loop()
        interrupts.mode = Mode.HELD
    except Aborted:
        raise
    except BaseException as error:  # noqa: BLE001 (raised by `finish`)
        interrupts.mode = Mode.HELD
        if (number := interrupts.number) is not None:  # it came first; what broke since then broke because of it
            end = interrupts.raised or interrupts.error(number)
            if error is not end:
                _LOG.warning("after %s there was another error: %s", number.name, _line(error))
                carry(end, error, f"after {number.name}")
            return Outcome("interrupted", number.name, end)
        return Outcome("failed" if isinstance(error, Exception) else "interrupted", _line(error), error)
    return Outcome(status, reason)


def finish(failure: BaseException | None, *actions: Callable[[], None]) -> None:
    """Take every action, whatever becomes of the others; then raise the first error of the run, if there was one."""
    for action in actions:
        try:
            action()
        except Aborted:
            raise
        except BaseException as error:  # noqa: BLE001 (raised below)
            if failure is None:
                failure = error
            else:
                carry(failure, error, "at the end of the run")
    if failure is not None:
        raise failure


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
