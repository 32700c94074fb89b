"""Failed groups of a run: how many are allowed, and which groups are dispatched in their place."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from hooktrainer.errors import MAX_LINE, RolloutError, add_note, line_of, shortened
from hooktrainer.metrics import Last, Metric
from hooktrainer.ports import FailureReason, Group, Replacement
from hooktrainer.replay.ledger import DropReason
from hooktrainer.replay.serialization import pack_prompts, unpack_prompts

_LOG: Final = logging.getLogger("hooktrainer")
DROP_REASONS: Final[Mapping[FailureReason, DropReason]] = {
    "error": "failed",
    "cancelled": "cancelled",
    "timeout": "failed",
    "worker_died": "failed",
}
"""The reason that the ledger records for each kind of failure."""


class Failures:
    """Counts of failed groups by reason, and the requested replacements. A failure beyond a limit is fatal."""

    def __init__(self, max_failed: int, max_lost: int) -> None:
        self._max_failed = max_failed
        self._max_lost = max_lost
        self._counts: Counter[FailureReason] = Counter()
        self._replacements: list[Replacement] = []
        self._fatal: BaseException | None = None

    def add(self, group: Group, error: BaseException, reason: FailureReason) -> None:
        """Record a failed group and request its replacement.

        A failure beyond the limit is fatal. A resumed run dispatches its prompt again.
        """
        self._counts[reason] += 1
        summary = f"{_named(group)} could not be generated ({reason})"
        errors = self._counts["error"]
        exceeded = errors > self._max_failed if reason == "error" else self._counts.total() - errors > self._max_lost
        if exceeded and self._fatal is None:
            limit = "max_failed_groups" if reason == "error" else "max_lost_groups"
            allowed = self._max_failed if reason == "error" else self._max_lost
            text = f"{summary}, and the limit replay.{limit} = {allowed} is exceeded"
            self._fatal = RolloutError(f"{text}: {line_of(error)}")
            self._fatal.__cause__ = error
        elif not exceeded:
            _LOG.warning("%s and is replaced: %s", summary, line_of(error))
        self._replacements.append(Replacement(group.prompt if exceeded or reason == "worker_died" else None))

    def add_filter_error(self, group: Group, error: BaseException) -> None:
        """Record an error raised by the replay filter, which is fatal; a resumed run dispatches the prompt again."""
        if self._fatal is None:
            add_note(error, f"raised by the replay filter for {_named(group)}")
            self._fatal = error
        self._replacements.append(Replacement(group.prompt))

    def replace_filtered(self) -> None:
        """Request a group with a new prompt in place of one that the replay filter rejected."""
        self._replacements.append(Replacement())

    def raise_if_fatal(self) -> None:
        """Raise the fatal error, if there is one: a `RolloutError` caused by the group's error, or a filter's error."""
        if self._fatal is not None:
            raise self._fatal

    def take_replacements(self) -> list[Replacement]:
        """Return the replacements requested since the last call."""
        taken, self._replacements = self._replacements, []
        return taken

    @property
    def has_prompts(self) -> bool:
        """Whether a prompt waits to be dispatched again."""
        return any(replacement.prompt is not None for replacement in self._replacements)

    def metrics(self) -> Mapping[str, Metric]:
        """Return the number of failed groups of the run so far, by reason."""
        return {f"replay/failed/{reason}": Last(count) for reason, count in self._counts.items()}

    def state_dict(self) -> Mapping[str, object]:
        """Return the counts and the requested replacements."""
        prompts = [replacement.prompt for replacement in self._replacements if replacement.prompt is not None]
        return {
            "counts": dict(self._counts),
            "prompts": pack_prompts(prompts),
            "new_prompts": len(self._replacements) - len(prompts),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state returned by `state_dict()`."""
        self._counts = Counter(state["counts"])
        again = [Replacement(prompt) for prompt in unpack_prompts(state["prompts"])]
        self._replacements = again + [Replacement()] * state["new_prompts"]


def _named(group: Group) -> str:
    return f"group {group.number} ({shortened(repr(group.prompt.text), MAX_LINE)})"
