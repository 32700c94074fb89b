"""Everything that hooktrainer raises on purpose.

* HookTrainerError
  x ConfigError          the YAML, an override or the composition is wrong; raised before any work (exit 2)
    + PlanError          the plugins cannot be put into one order that is right
  x MetricError          a metric that cannot be merged, or two meanings for one name
  x RecordError          a row read before it is sealed, or written to after
    + MissingMetricError a metric that the row does not have
  x BusError             an emit, stop or signal from where none is allowed
  x PortError            a plugin used a port that nobody bound
  x RunError             the run itself failed (exit 1)
    + RolloutError       a group could not be generated
    + StarvedError       sampling waited longer than allowed, or can never succeed
    + SyncError          weights were not confirmed on every engine
    + NonFiniteError     a loss or gradient is NaN or infinite
    + LedgerError        groups were lost or counted twice
    + CheckpointError    a checkpoint cannot be written, found, read or fitted to the run
"""

from __future__ import annotations

import difflib
import traceback
from collections.abc import Iterable, Sequence

import attrs


class HookTrainerError(Exception):
    """Base of all errors raised on purpose."""


@attrs.frozen
class Fault:
    """One thing wrong in a configuration: where it stands, what was found, and the way out."""

    address: str
    """YAML address (`plugins[2].every`) or file; empty if the fault belongs to the whole."""
    message: str

    def __str__(self) -> str:
        return f"{self.address}: {self.message}" if self.address else self.message


class ConfigError(HookTrainerError):
    """The configuration is wrong; carries every fault that was found, not only the first."""

    def __init__(self, faults: Sequence[Fault] | str) -> None:
        self.faults: tuple[Fault, ...] = (Fault("", faults),) if isinstance(faults, str) else tuple(faults)
        super().__init__("\n".join(str(fault) for fault in self.faults))


class PlanError(ConfigError):
    """The plugins cannot be put into one order that is right."""


class MetricError(HookTrainerError):
    """A metric that cannot be merged, or two meanings for one name."""


class RecordError(HookTrainerError):
    """A row was read before it was sealed, or written to after."""


class MissingMetricError(RecordError, KeyError):
    """A row has no metric of this name."""

    __str__ = Exception.__str__  # a KeyError would show the repr of the sentence


class BusError(HookTrainerError):
    """An emit, stop or signal from where none is allowed."""


class PortError(HookTrainerError, AttributeError):
    """A plugin used a port that nobody bound; an `AttributeError`, so that `hasattr` and `copy` answer."""


class RunError(HookTrainerError):
    """The run itself failed."""


class RolloutError(RunError):
    """A group could not be generated."""


class StarvedError(RunError):
    """Sampling waited longer than allowed, or can never succeed."""


class SyncError(RunError):
    """Weights were not confirmed on every engine."""


class NonFiniteError(RunError):
    """A loss or gradient is NaN or infinite."""


class LedgerError(RunError):
    """Groups were lost or counted twice."""


class CheckpointError(RunError):
    """A checkpoint cannot be written, found, read or fitted to the run."""


def carry(error: BaseException, another: BaseException, when: str) -> None:
    """Note a second error, traceback and notes included, on the first one, which is the one that is raised."""
    if another is not error:
        error.add_note(f"{when} there was another error:\n{_shown(another, error)}".rstrip())


def _shown(error: BaseException, told: BaseException) -> str:
    """The traceback, unless it was raised on purpose and says all; without the error that is told anyway."""
    if isinstance(error, HookTrainerError) and error.__cause__ is None:
        return "\n".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())])
    view = traceback.TracebackException.from_exception(error)
    _leave_out(view, error, told)
    return "".join(view.format())


def _leave_out(view: traceback.TracebackException, error: BaseException, told: BaseException) -> None:
    """Else every error noted on one that is being handled would show that one once more, with all of its notes."""
    for link in ("__cause__", "__context__"):
        before, shown = getattr(error, link), getattr(view, link)
        if before is told:
            setattr(view, link, None)
        elif before is not None and shown is not None:
            _leave_out(shown, before, told)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A sentence that starts with a space and suggests the closest known word; empty if none is close."""
    close = difflib.get_close_matches(str(word), sorted(known), n=1, cutoff=0.6)
    return f" Did you mean '{close[0]}'?" if close else ""
