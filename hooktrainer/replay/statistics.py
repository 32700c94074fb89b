"""Counts of the replay buffer since they were last reported, and prompts that are dropped repeatedly."""

from __future__ import annotations

import logging
import math
from collections import Counter, OrderedDict
from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias

from hooktrainer.metrics import Counts, Metric, Sum
from hooktrainer.ports import Prompt

_LOG: Final = logging.getLogger("hooktrainer")
REPEATED_DROPS: Final = 3
"""Drops of one prompt after which a warning is logged."""
REMEMBERED_PROMPTS: Final = 256
"""Prompts whose drops are counted, in memory and in a checkpoint: those that were dropped most recently."""

CountedEvent: TypeAlias = Literal["evicted_capacity", "handed_in_late", "dropped_repeatedly"]


class ReplayStatistics:
    """Counts for the metrics of the buffer, and the drops of each prompt since it was last trained."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._seconds: Counter[float] = Counter()  # per group
        self._drops: OrderedDict[str, int] = OrderedDict()  # by text of the prompt, the most recent last

    def count(self, event: CountedEvent) -> None:
        """Count one group."""
        self._counts[event] += 1

    def generated(self, seconds: float) -> None:
        """Count a group that was generated in this time."""
        self._seconds[_bucket(seconds)] += 1

    def dropped(self, prompt: Prompt) -> None:
        """Count a drop of a stale group of this prompt, and log a warning if its drops are repeated."""
        drops = self._drops.pop(prompt.text, 0) + 1
        self._drops[prompt.text] = drops
        if len(self._drops) > REMEMBERED_PROMPTS:
            self._drops.popitem(last=False)
        if drops == REPEATED_DROPS:
            self.count("dropped_repeatedly")
            _LOG.warning(
                "prompt %r was dropped as stale %d times and never trained; its answers may take longer than others",
                prompt.text,
                REPEATED_DROPS,
            )

    def trained(self, prompt: Prompt) -> None:
        """Reset the drops of a prompt that is trained."""
        self._drops.pop(prompt.text, None)

    def take_metrics(self) -> Mapping[str, Metric]:
        """Return the counts since the last call."""
        counts, self._counts = self._counts, Counter()
        seconds, self._seconds = self._seconds, Counter()
        return {
            "replay/evicted_capacity": Sum(counts["evicted_capacity"]),
            "replay/handed_in_late": Sum(counts["handed_in_late"]),
            "replay/dropped_repeatedly": Sum(counts["dropped_repeatedly"]),
            "timing_s/group": Counts(seconds),
        }

    def state_dict(self) -> Mapping[str, object]:
        """Return a copy of all counts."""
        return {"counts": Counter(self._counts), "seconds": Counter(self._seconds), "drops": dict(self._drops)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state returned by `state_dict()`."""
        self._counts, self._seconds = Counter(state["counts"]), Counter(state["seconds"])
        self._drops = OrderedDict(state["drops"])


def _bucket(seconds: float) -> float:
    """Return the nearest of five values per decade, so that a run has few different ones."""
    return float(f"{10 ** (round(5 * math.log10(max(seconds, 1e-6))) / 5):.2g}")
