"""Groups that could not be generated: how many a run puts up with, and what takes their place."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from typing import Final

from hooktrainer.errors import RolloutError
from hooktrainer.groups import FailureReason, Group, Lost
from hooktrainer.ledger import DropReason
from hooktrainer.metrics import Last, Metric

_LOG: Final = logging.getLogger("hooktrainer")
DROPPED_AS: Final[Mapping[FailureReason, DropReason]] = {
    "error": "failed",
    "cancelled": "cancelled",
    "timeout": "failed",
    "worker_died": "failed",
}


class Losses:
    """Counts failed groups by reason; the first one over its budget is fatal."""

    def __init__(self, max_failed: int, max_lost: int) -> None:
        self._max_failed = max_failed
        self._max_lost = max_lost
        self._counts: Counter[FailureReason] = Counter()
        self._to_replace: list[Lost] = []
        self._fatal: RolloutError | None = None

    def add(self, group: Group, error: BaseException, reason: FailureReason) -> None:
        """Enter a failed group; it is replaced unless its budget is spent."""
        self._counts[reason] += 1
        what = f"group {group.number} ({group.prompt.text!r}) could not be generated ({reason})"
        raised = self._counts["error"]
        spent = raised > self._max_failed if reason == "error" else self._counts.total() - raised > self._max_lost
        if spent and self._fatal is None:
            limit = "max_failed_groups" if reason == "error" else "max_lost_groups"
            allowed = self._max_failed if reason == "error" else self._max_lost
            self._fatal = RolloutError(f"{what}, and replay.{limit} = {allowed} is spent")
            self._fatal.__cause__ = error
        elif not spent:
            _LOG.warning("%s and is replaced: %s: %s", what, type(error).__name__, error)
            self._to_replace.append(Lost(group.prompt if reason == "worker_died" else None))

    def raise_if_fatal(self) -> None:
        """Raise `RolloutError`, caused by the group's own error, once a budget is spent."""
        if self._fatal is not None:
            raise self._fatal

    def take(self) -> list[Lost]:
        """What has to be replaced since the last call."""
        taken, self._to_replace = self._to_replace, []
        return taken

    @property
    def pending(self) -> bool:
        """Whether something has to be replaced."""
        return bool(self._to_replace)

    def metrics(self) -> Mapping[str, Metric]:
        """Failed groups of the run so far, by reason."""
        return {f"replay/failed/{reason}": Last(count) for reason, count in self._counts.items()}
