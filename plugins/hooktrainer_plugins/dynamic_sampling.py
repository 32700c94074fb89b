"""Train only on groups whose answers differ in their scores, and replace the others: dynamic sampling of DAPO."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import attrs

from hooktrainer import Plugin, Priority, on
from hooktrainer.events import FitStart, IterationEnd
from hooktrainer.metrics import Counts, Mean, Rate, Sum
from hooktrainer.plugin import port, state
from hooktrainer.ports import Group, ReplayBuffer

if TYPE_CHECKING:
    from hooktrainer import Config

_LOG: Final = logging.getLogger("hooktrainer")
PREFIX: Final = "training/dynamic_sampling"


@attrs.define(kw_only=True)
class DynamicSampling(Plugin):
    """Drop groups in which every answer has one score, since a group-relative advantage is 0 there, and refill."""

    max_dropped: int = attrs.field(default=256, validator=attrs.validators.ge(1))
    """Groups that may be dropped between two updates; once so many were, what comes is trained as it is. It bounds the
    work on a task that is solved, or still too hard."""

    buffer: ReplayBuffer = port()
    _lock: threading.Lock = attrs.field(factory=threading.Lock, init=False, repr=False, eq=False)
    _kept: int = state(0)
    _passed: int = state(0)
    _dropped: Counter[float] = state(factory=Counter)
    _scores: Counter[float] = state(factory=Counter)
    _warned: bool = attrs.field(default=False, init=False, repr=False)

    def check(self, config: Config) -> Iterable[str]:
        """Refuse groups of one, which never differ."""
        if config.rollout.options.get("n") == 1:
            yield "rollout.n is 1: a single answer differs from no other, so that every group is dropped. Sample more."

    def state_dict(self) -> dict[str, object]:
        """What was counted since the last update; scores and how often there were as pairs of numbers."""
        with self._lock:
            counted = {"dropped": self._dropped, "scores": self._scores}
            pairs = {key: [[score, count] for score, count in found.items()] for key, found in counted.items()}
            return {"kept": self._kept, "passed": self._passed, **pairs}

    def load_state_dict(self, kept: Mapping[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        with self._lock:
            super().load_state_dict(
                {key: Counter(dict(value)) if isinstance(value, list) else value for key, value in kept.items()}
            )

    @on(FitStart, priority=Priority.PREPARE)
    def hand_over(self, _event: FitStart) -> None:
        """Give the buffer its filter."""
        self.buffer.set_filter(self.judge)

    @on(IterationEnd, priority=Priority.COLLECT, needs=["iteration.metrics"], adds=["metrics.row"])
    def collect(self, event: IterationEnd) -> None:
        """Report what was finished since the last update: kept and dropped, and the scores before any was dropped."""
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
        """Whether a finished group is to be trained; called by any thread, under the lock of the buffer.

        The scores are those of the task, before any shaping: else groups of right answers of different lengths pass.
        """
        scores = [answer.score for answer in group.trajectories]
        with self._lock:
            self._scores.update(scores)
            if max(scores) != min(scores):
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
                "%d groups whose answers all have one score were dropped since the last update, as many as max_dropped "
                "allows; more of them are trained as they are, and teach nothing",
                self.max_dropped,
            )
