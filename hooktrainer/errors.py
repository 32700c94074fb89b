"""The exceptions that hooktrainer raises.

* HookTrainerError
  x ConfigError          the YAML, an override or the composition is invalid; raised before any work (exit 2)
    + PlanError          the plugins have no valid order
  x MetricError          a metric cannot be merged, or two writers use one name differently
  x RecordError          a row is read before it is sealed, or written to afterwards
    + MissingMetricError the row does not contain the metric
  x BusError             an emit, stop or record access where it is not allowed
  x PortError            a plugin used a port that is not bound
  x RunError             the run itself failed (exit 1)
    + RolloutError       a group could not be generated
    + StarvedError       sampling exceeded its timeout, or can never succeed
    + SyncError          not every engine confirmed the weights
    + NonFiniteError     a loss or gradient is NaN or infinite
    + LedgerError        groups were lost or counted twice
    + CheckpointError    a checkpoint cannot be written, found, read or restored
    + HungError          a component did not return within its limit after a signal
    + RankError          a process of the learner ended, failed or differs from rank 0
      - CollectiveError  a reduction over the ranks was not completed
"""

from __future__ import annotations

import difflib
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final, TypeVar

import attrs

MAX_MESSAGE: Final = 4_000
"""Characters of a message; the middle of a longer one is left out."""
MAX_LINE: Final = 500
"""Characters of a text of user code within a line, such as the reason of a stop, and of a line of a traceback."""
MAX_TRACEBACK: Final = 20_000
"""Characters of a traceback, which is shown in the same way."""
MAX_FAULTS: Final = 50
"""Faults that a message lists."""


def shortened(text: str, length: int = MAX_MESSAGE) -> str:
    """Return a text without its middle if it is longer than `length` characters."""
    if len(text) <= length:
        return text
    kept = length // 2
    return f"{text[:kept]} ... {len(text) - 2 * kept} characters ... {text[-kept:]}"


def _short_source(text: str) -> str:
    return shortened(text, 200)


class HookTrainerError(Exception):
    """Base class of the exceptions that hooktrainer raises."""

    def __str__(self) -> str:
        return shortened(super().__str__())


@attrs.frozen
class Fault:
    """One error in a configuration: its place, the value found, and how to correct it."""

    address: str = attrs.field(converter=shortened)
    """YAML address (`plugins[2].every`) or file; empty if the fault has no single place."""
    message: str = attrs.field(converter=shortened)
    because: str = attrs.field(default="", eq=False, kw_only=True)
    """Address of another value that caused the fault; empty if the value at `address` did."""
    plugin: str = attrs.field(default="", eq=False, kw_only=True, converter=_short_source)
    """Name of the plugin at the address; empty outside of the plugin list."""
    override: str = attrs.field(default="", eq=False, kw_only=True, converter=_short_source)
    """The override on the command line that caused the fault; empty if a file did."""

    def __str__(self) -> str:
        return f"{self.address}: {self.message}" if self.address else self.message


class ConfigError(HookTrainerError):
    """The configuration is invalid; `faults` has every fault that was found."""

    def __init__(self, faults: Sequence[Fault] | str) -> None:
        self.faults: tuple[Fault, ...] = (Fault("", faults),) if isinstance(faults, str) else tuple(faults)
        super().__init__("\n".join(listed(self.faults)))

    def __str__(self) -> str:
        return Exception.__str__(self)

    def place(self, address: str) -> None:
        """Set the address of the faults that have none."""
        self.revise(lambda fault: fault if fault.address else attrs.evolve(fault, address=address))

    def revise(self, change: Callable[[Fault], Fault]) -> None:
        """Replace each fault with what `change` returns for it."""
        self.faults = tuple(map(change, self.faults))
        self.args = ("\n".join(listed(self.faults)),)


class PlanError(ConfigError):
    """The plugins have no valid order."""


class MetricError(HookTrainerError):
    """A metric cannot be merged, or two writers use one name with different reductions."""


class RecordError(HookTrainerError):
    """A row was read before it was sealed, or written to afterwards."""


class MissingMetricError(RecordError, KeyError):
    """The row does not contain the metric."""

    def __str__(self) -> str:
        return shortened(Exception.__str__(self))  # KeyError would show the repr of the message


class BusError(HookTrainerError):
    """An emit, stop or record access where it is not allowed."""


class PortError(HookTrainerError, AttributeError):
    """A plugin used a port that is not bound; an `AttributeError`, so that `hasattr` and `copy` work."""


class RunError(HookTrainerError):
    """The run itself failed."""


class RolloutError(RunError):
    """A group could not be generated."""


class StarvedError(RunError):
    """Sampling exceeded its timeout, or can never succeed."""


class SyncError(RunError):
    """Not every engine confirmed the weights."""


class NonFiniteError(RunError):
    """A loss or gradient is NaN or infinite."""


class LedgerError(RunError):
    """Groups were lost or counted twice."""


class CheckpointError(RunError):
    """A checkpoint cannot be written, found, read or restored."""


class HungError(RunError):
    """A component did not return within its limit after a signal."""


class RankError(RunError):
    """A process of the learner ended, failed or differs from rank 0."""


class CollectiveError(RankError):
    """A reduction over the ranks was not completed, most often because one of them ended."""


def message_of(error: object, length: int = MAX_MESSAGE) -> str:
    """Return the text of any error, or of any other object, also if its `__str__` raises."""
    try:
        text = str(error)
    except (Exception, SystemExit) as another:  # noqa: BLE001 (code of a user)
        return f"(the __str__ of {type(error).__name__} raised {type(another).__name__})"
    return shortened(text, length)


def line_of(error: BaseException) -> str:
    """Return the type and the text of any error, short enough for a line."""
    return f"{type(error).__name__}: {message_of(error, MAX_LINE)}"


def repr_of(error: BaseException) -> str:
    """Return the `repr` of any error; its type and text if its `__repr__` raises."""
    try:
        return shortened(repr(error))
    except (Exception, SystemExit):  # noqa: BLE001 (code of a user)
        return line_of(error)


def traceback_of(error: BaseException) -> str:
    """Return the traceback of any error as text."""
    try:
        return _fitted(traceback.format_exception(error), MAX_TRACEBACK)
    except (Exception, SystemExit):  # noqa: BLE001 (attributes of a user's error may raise)
        return f"{''.join(traceback.format_tb(error.__traceback__))}{line_of(error)}\n"


def _fitted(parts: Iterable[str], length: int) -> str:
    """Return the parts of a traceback as text with short messages and lines."""
    lines = "".join(shortened(part) for part in parts).splitlines()
    return shortened("".join(f"{shortened(line, MAX_LINE)}\n" for line in lines), length)


def notes_of(error: BaseException) -> list[str]:
    """Return the notes of any error, also if its `__notes__` is not a list."""
    try:
        notes: object = error.__notes__
    except (Exception, SystemExit):  # noqa: BLE001 (it has none, or the attribute raises)
        return []
    return [message_of(note) for note in notes] if isinstance(notes, (list, tuple)) else [message_of(notes)]


def add_note(error: BaseException, note: str) -> None:
    """Add a note to any error, also if its class overrides `add_note` or its `__notes__` is not a list."""
    try:
        BaseException.add_note(error, note)
    except (Exception, SystemExit):  # noqa: BLE001 (attributes of a user's error may raise)
        with suppress(Exception):
            error.__notes__ = [*notes_of(error), note]


def listed(faults: Sequence[Fault], text_of: Callable[[Fault], str] = str) -> list[str]:
    """Return the texts of the first faults, and the number of further ones."""
    more = len(faults) - MAX_FAULTS
    return [*map(text_of, faults[:MAX_FAULTS]), *([f"and {more} more"] if more > 0 else [])]


E = TypeVar("E", bound=BaseException)


def add_error_note(error: BaseException, another: BaseException, when: str) -> None:
    """Add a note to `error` that shows another error with its traceback and notes."""
    if another is not error:
        add_note(error, f"{when} there was another error:\n{_shown(another, error)}".rstrip())


def first_error(errors: Sequence[E], when: str) -> E:
    """Return the first error, with a note for each of the others."""
    for another in errors[1:]:
        add_error_note(errors[0], another, when)
    return errors[0]


def _shown(error: BaseException, first: BaseException) -> str:
    """Return the traceback without `first`; for an error of hooktrainer without a cause, only its message."""
    if isinstance(error, HookTrainerError) and error.__cause__ is None:
        return "\n".join([line_of(error), *notes_of(error)])
    try:
        view = traceback.TracebackException.from_exception(error)
        _leave_out(view, error, first)
        return _fitted(view.format(), MAX_MESSAGE)
    except (Exception, SystemExit):  # noqa: BLE001 (attributes of a user's error may raise)
        return traceback_of(error)


def _leave_out(view: traceback.TracebackException, error: BaseException, first: BaseException) -> None:
    """Remove `first` from the chain of causes and contexts: it is shown already, with all of its notes."""
    for link in ("__cause__", "__context__"):
        before, shown = getattr(error, link), getattr(view, link)
        if before is first:
            setattr(view, link, None)
        elif before is not None and shown is not None:
            _leave_out(shown, before, first)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return " Did you mean '...'?" with the closest known word; an empty string if none is close."""
    close = difflib.get_close_matches(str(word), sorted(known), n=1, cutoff=0.6)
    return f" Did you mean '{close[0]}'?" if close else ""
