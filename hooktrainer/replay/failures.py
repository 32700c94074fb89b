"""Groups that could not be generated, or are not wanted: how many a run puts up with, and what takes their place."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from hooktrainer.errors import RolloutError
from hooktrainer.metrics import Last, Metric
from hooktrainer.ports import FailureReason, Group, Lost
from hooktrainer.replay.ledger import DropReason
from hooktrainer.replay.serialization import pack_prompts, unpack_prompts

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
        """Enter a failed group; it is replaced.

        Once its budget is spent that is up to the run that goes on from this one, and it tries the prompt again.
        """
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
        self._to_replace.append(Lost(group.prompt if spent or reason == "worker_died" else None))

    def replace(self) -> None:
        """A new prompt takes the place of a group that is no failure, but not wanted."""
        self._to_replace.append(Lost())

    def raise_if_fatal(self) -> None:
        """Raise `RolloutError`, caused by the group's own error, once a budget is spent."""
        if self._fatal is not None:
            raise self._fatal

    def take(self) -> list[Lost]:
        """What has to be replaced since the last call."""
        taken, self._to_replace = self._to_replace, []
        return taken

    @property
    def owes_prompts(self) -> bool:
        """Whether a prompt waits to be dispatched again."""
        return any(lost.prompt is not None for lost in self._to_replace)

    def metrics(self) -> Mapping[str, Metric]:
        """Failed groups of the run so far, by reason."""
        return {f"replay/failed/{reason}": Last(count) for reason, count in self._counts.items()}

    def state_dict(self) -> Mapping[str, object]:
        """Counts, and what waits to be replaced."""
        prompts = [lost.prompt for lost in self._to_replace if lost.prompt is not None]
        return {
            "counts": dict(self._counts),
            "again": pack_prompts(prompts),
            "anew": len(self._to_replace) - len(prompts),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        self._counts = Counter(state["counts"])
        self._to_replace = [Lost(prompt) for prompt in unpack_prompts(state["again"])] + [Lost()] * state["anew"]
