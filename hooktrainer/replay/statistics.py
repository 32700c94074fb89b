"""What passed through the replay buffer since somebody looked, and the prompts that are thrown away again and again."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias

from hooktrainer.metrics import Counts, Metric, Sum
from hooktrainer.ports import Prompt

_LOG: Final = logging.getLogger("hooktrainer")
REPEATED_DROPS: Final = 3
"""Drops of one prompt after which it is said that it is not trained."""

Passage: TypeAlias = Literal["evicted_capacity", "handed_in_late", "dropped_repeatedly"]


class Turnover:
    """Counts for the metrics of the buffer, and the drops of every prompt until it is trained."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._seconds: Counter[float] = Counter()  # of each group
        self._drops: Counter[str] = Counter()  # by text of the prompt

    def count(self, passage: Passage) -> None:
        """Count one group."""
        self._counts[passage] += 1

    def generated(self, seconds: float) -> None:
        """Count a group that took so long."""
        self._seconds[_bucket(seconds)] += 1

    def dropped(self, prompt: Prompt) -> None:
        """A group of this prompt was too old; says so if that happens again and again."""
        self._drops[prompt.text] += 1
        if self._drops[prompt.text] == REPEATED_DROPS:
            self.count("dropped_repeatedly")
            _LOG.warning(
                "prompt %r was too old %d times and is not trained; its answers take longer",
                prompt.text,
                REPEATED_DROPS,
            )

    def trained(self, prompt: Prompt) -> None:
        """Its drops are forgiven."""
        self._drops.pop(prompt.text, None)

    def take_metrics(self) -> Mapping[str, Metric]:
        """Counts since the last call."""
        counts, self._counts = self._counts, Counter()
        seconds, self._seconds = self._seconds, Counter()
        return {
            "replay/evicted_capacity": Sum(counts["evicted_capacity"]),
            "replay/handed_in_late": Sum(counts["handed_in_late"]),
            "replay/dropped_repeatedly": Sum(counts["dropped_repeatedly"]),
            "timing_s/group": Counts(seconds),
        }

    def state_dict(self) -> Mapping[str, object]:
        """A copy of all counts."""
        return {"counts": Counter(self._counts), "seconds": Counter(self._seconds), "drops": Counter(self._drops)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        self._counts, self._seconds, self._drops = (Counter(state[key]) for key in ("counts", "seconds", "drops"))


def _bucket(seconds: float) -> float:
    """The nearest of five values a decade, so that a run has few different ones."""
    return float(f"{10 ** (round(5 * math.log10(max(seconds, 1e-6))) / 5):.2g}")
