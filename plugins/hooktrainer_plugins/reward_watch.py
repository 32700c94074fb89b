"""Warn when the mean reward and the mean length of answers move together."""

from __future__ import annotations

import logging
import math
from numbers import Real
from typing import ClassVar, Final

import attrs
import numpy as np
from attrs.validators import ge, gt, instance_of, lt

from hooktrainer import Plugin, Priority, on
from hooktrainer.events import IterationEnd, StepEnd
from hooktrainer.metrics import Last, Mean, plain
from hooktrainer.plugin import metric, state

_LOG: Final = logging.getLogger("hooktrainer")
LENGTH: Final = "response_length/mean"
"""Tokens per answer."""
CORRELATION: Final = "reward_watch/length_correlation"


@attrs.define(kw_only=True)
class RewardWatch(Plugin):
    """Warn when the mean reward and the mean length of answers move together: a policy may gain reward by length alone.

    The correlation is Pearson's, over the last steps. It is reported once the window is full, unless reward or length
    is constant. The run continues.
    """

    adds_metrics: ClassVar = (CORRELATION,)

    metric: str = metric("critic/score/mean")
    """The reward: a metric that the learner reports for each update. A step without it, or with a value that is not
    finite, is left out."""

    window: int = attrs.field(default=20, validator=[instance_of(int), ge(4)])
    """Number of last steps to correlate. A warning is repeated only after more steps than these without cause, so that
    one outlier does not repeat it."""

    threshold: float = attrs.field(default=0.9, converter=float, validator=[gt(0.0), lt(1.0)])
    """Size of the correlation, of either sign, that causes a warning."""

    min_change: float = attrs.field(default=0.1, converter=float, validator=ge(0.0))
    """Relative change that reward and length must both exceed. It compares the means of both halves of the window:
    their difference, as a fraction of the larger one. It is at most 2, for a change of sign."""

    _rewards: list[float] = state(factory=list)
    _lengths: list[float] = state(factory=list)
    _quiet_in: int = state(0)  # steps without cause until the episode is over; 0 outside of episodes
    _known: bool = state(False)  # whether an update had the metric, or its absence was logged
    _reward: Mean = attrs.field(factory=lambda: Mean(0, 0), init=False, repr=False)  # of the current step
    _length: Mean = attrs.field(factory=lambda: Mean(0, 0), init=False, repr=False)

    @on(IterationEnd, priority=Priority.COLLECT, needs=["iteration.metrics"])
    def collect(self, event: IterationEnd) -> None:
        """Add reward and length of one update to the means of the step."""
        reward, length = (_mean(event.metrics.get(key), event.samples) for key in (self.metric, LENGTH))
        if reward is not None and length is not None:
            self._reward, self._length = self._reward.merge(reward), self._length.merge(length)

    @on(StepEnd, priority=Priority.COLLECT, adds=["metrics.row"])
    def watch(self, event: StepEnd) -> None:
        """Report the correlation over the last steps, and warn once in each episode."""
        reward, length = self._reward.value, self._length.value
        self._reward, self._length = Mean(0, 0), Mean(0, 0)
        if reward is None or length is None:
            self._log_absence(event)
            return
        self._known = True
        if not math.isfinite(reward) or not math.isfinite(length):
            return
        self._rewards = [*self._rewards, reward][-self.window :]
        self._lengths = [*self._lengths, length][-self.window :]
        if len(self._rewards) < self.window:
            return
        correlation = _correlation(self._rewards, self._lengths)
        if correlation is not None:
            event.record.add({CORRELATION: Last(correlation)})
            if self._is_cause(correlation):
                if not self._quiet_in:
                    _LOG.warning(self._found(correlation, event.step))
                self._quiet_in = self.window + 1
                return
        self._quiet_in = max(self._quiet_in - 1, 0)

    def _is_cause(self, correlation: float) -> bool:
        changes = map(_change, (self._rewards, self._lengths))
        return abs(correlation) >= self.threshold and all(change > self.min_change for change in changes)

    def _found(self, correlation: float, step: int) -> str:
        moved = "together" if correlation > 0 else "in opposite directions"
        spans = (
            f"{name} from {first:.4g} to {second:.4g}"
            for name, (first, second) in ((self.metric, _halves(self._rewards)), (LENGTH, _halves(self._lengths)))
        )
        return (
            f"reward and length move {moved}: their correlation over the last {self.window} steps is {correlation:.2f} "
            f"in step {step}, {', '.join(spans)} (means of both halves). Read answers, as the plugin `samples` writes "
            "them, to see whether they are better or only of another length"
        )

    def _log_absence(self, event: StepEnd) -> None:
        if not self._known and (event.last or event.step >= self.window):
            self._known = True
            _LOG.warning(
                "reward_watch has no effect: no update up to step %d reported its metric '%s' and '%s'",
                event.step,
                self.metric,
                LENGTH,
            )


def _mean(reported: object, samples: int) -> Mean | None:
    """Return a metric of an update as a mean over its samples; None if it is missing or not a number."""
    if isinstance(reported, Mean):
        return reported
    value = plain(reported)
    return Mean.of([value], [samples]) if isinstance(value, Real) else None


def _correlation(first: list[float], second: list[float]) -> float | None:
    """Return Pearson's correlation; None if one of both is constant."""
    if min(first) == max(first) or min(second) == max(second):
        return None
    scaled = [
        np.array(values, np.float64) / max(map(abs, values)) for values in (first, second)
    ]  # squares could overflow
    return float(np.corrcoef(scaled[0], scaled[1])[0, 1])


def _halves(values: list[float]) -> tuple[float, float]:
    """Return the means of both halves; an odd window leaves out the value in the middle."""
    half = len(values) // 2
    return math.fsum(one / half for one in values[:half]), math.fsum(one / half for one in values[-half:])


def _change(values: list[float]) -> float:
    first, second = _halves(values)
    return abs(second - first) / (max(abs(first), abs(second)) or 1.0)
