"""Train only on groups whose answers have different scores, and replace the others: dynamic sampling of DAPO."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

import attrs

from hooktrainer import Plugin, Priority, on
from hooktrainer.events import FitStart, IterationEnd
from hooktrainer.metrics import Counts, Mean, Rate, Sum
from hooktrainer.plugin import port, state
from hooktrainer.ports import Group, ReplayBuffer

if TYPE_CHECKING:
    from hooktrainer import Config

_LOG: Final = logging.getLogger("hooktrainer")
_DIGITS: Final = 12
"""Digits of the scores that are counted, so that one score with different rounding errors is one key."""
PREFIX: Final = "training/dynamic_sampling"


@attrs.define(kw_only=True)
class DynamicSampling(Plugin):
    """Drop and replace groups whose answers all have the same score, since their group-relative advantages are 0."""

    adds_metrics: ClassVar = (f"{PREFIX}/",)

    max_dropped: int = attrs.field(default=256, validator=attrs.validators.ge(1))
    """Groups that may be dropped between two updates. After that, groups without signal are trained on too. The limit
    bounds the work on a task that is solved, or still too hard."""

    buffer: ReplayBuffer = port()
    _lock: threading.Lock = attrs.field(factory=threading.Lock, init=False, repr=False, eq=False)
    _kept: int = state(0)
    _passed: int = state(0)
    _dropped: Counter[float] = state(factory=Counter)
    _scores: Counter[float] = state(factory=Counter)
    _warned: bool = attrs.field(default=False, init=False, repr=False)

    def check(self, config: Config) -> Iterable[str]:
        """Reject `rollout.n: 1`: the scores of a single answer never differ."""
        if config.rollout.options.get("n") == 1:
            yield "rollout.n is 1: a group of one answer has one score, so every group is dropped. Increase rollout.n."

    def state_dict(self) -> dict[str, object]:
        """Return the counts since the last update; score counts are lists of [score, count] pairs."""
        with self._lock:
            counted = {"dropped": self._dropped, "scores": self._scores}
            pairs = {key: [[score, count] for score, count in found.items()] for key, found in counted.items()}
            return {"kept": self._kept, "passed": self._passed, **pairs}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Restore the state returned by `state_dict()`."""
        with self._lock:
            super().load_state_dict(
                {key: Counter(dict(value)) if isinstance(value, list) else value for key, value in saved.items()}
            )

    @on(FitStart, priority=Priority.PREPARE, makes=["replay.filter"])
    def set_filter(self, _event: FitStart) -> None:
        """Set the filter of the buffer."""
        self.buffer.set_filter(self.judge)

    @on(IterationEnd, priority=Priority.COLLECT, needs=["iteration.metrics"], adds=["metrics.row"])
    def collect(self, event: IterationEnd) -> None:
        """Report the groups finished since the last update: kept and dropped, and the scores before dropping."""
        with self._lock:
            kept, passed, dropped, scores = self._kept, self._passed, self._dropped, self._scores
            self._kept, self._passed, self._dropped, self._scores = 0, 0, Counter(), Counter()
        count = dropped.total()
        event.record.add(
            {
                f"{PREFIX}/kept": Sum(kept),
                f"{PREFIX}/passed": Sum(passed),
                f"{PREFIX}/dropped": Sum(count),
                f"{PREFIX}/dropped_share": Rate(count, kept + passed + count),
                f"{PREFIX}/dropped_scores": Counts(dropped),
                f"{PREFIX}/unfiltered_score/mean": Mean.of(scores.keys(), scores.values()),
            }
        )

    def judge(self, group: Group) -> bool:
        """Return whether to train on a finished group; called on any thread, under the lock of the buffer.

        Scores of the task are compared, before shaping. Otherwise a length penalty would make correct answers differ.
        """
        scores = [round(answer.score, _DIGITS) + 0.0 for answer in group.trajectories]  # + 0.0 makes -0.0 a 0.0
        with self._lock:
            self._scores.update(scores)
            if group.scores_differ:
                self._kept += 1
                return True
            if self._dropped.total() < self.max_dropped:
                self._dropped[scores[0]] += 1
                return False
            self._passed += 1
            self._warn()
            return True

    def _warn(self) -> None:
        if not self._warned:
            self._warned = True
            _LOG.warning(
                "%d groups whose answers all have the same score were dropped since the last update, the maximum that "
                "max_dropped allows; further ones are trained on, with zero advantages",
                self.max_dropped,
            )
