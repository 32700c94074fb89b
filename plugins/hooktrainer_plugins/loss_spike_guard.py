"""Detect an update with an outlier loss, and stop or roll back before it is published."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from numbers import Real
from statistics import median
from typing import ClassVar, Final, Literal

import attrs
from attrs.validators import ge, gt, in_

from hooktrainer import Plugin, Priority, on
from hooktrainer.errors import RunError, did_you_mean
from hooktrainer.events import IterationEnd, StepStart
from hooktrainer.metrics import Sum, plain
from hooktrainer.plugin import metric, port, state
from hooktrainer.ports import RunState, Snapshot

_LOG: Final = logging.getLogger("hooktrainer")
SKIPPED: Final = "actor/skipped_updates"
_MAD_TO_SIGMA: Final = 1.4826  # of a normal distribution
_MIN_SPREAD: Final = 0.05  # of the median magnitude; without it, small noise in a constant metric is a spike


@attrs.define(kw_only=True)
class LossSpikeGuard(Plugin):
    """Compare a metric of every update with the median of the last updates, in robust standard deviations."""

    adds_metrics: ClassVar = ("actor/loss_spikes", "actor/rollbacks")

    metric: str = metric("actor/pg_loss")
    """A metric that the learner reports for each update. `actor/grad_norm` often shows a problem first."""

    threshold: float = attrs.field(default=10.0, validator=gt(0))
    """Distance from the median, in either direction, above which an update is a spike, in robust standard deviations:
    1.48 median absolute deviations. A value that is not finite is a spike too, unless the update was skipped."""

    window: int = attrs.field(default=50, validator=ge(4))
    """Number of last updates to compare with. No finite value is a spike until there are this many."""

    action: Literal["warn", "stop", "rollback"] = attrs.field(
        default="warn", validator=in_(("warn", "stop", "rollback"))
    )
    """`warn` logs a warning; `stop` ends the run after this step. `rollback` restores weights, optimizer and schedule
    from a copy made at the end of the previous step."""

    limit: int = attrs.field(default=3, validator=ge(0))
    """Consecutive spikes that are rolled back; one more fails the run."""

    run: RunState = port()

    _values: list[float] = state(factory=list)
    _in_a_row: int = state(0)
    _copy: Snapshot | None = attrs.field(default=None, init=False, repr=False)
    _known: bool = attrs.field(default=False, init=False, repr=False)  # reported once, or warned about

    @on(IterationEnd, priority=Priority.COLLECT, needs=["iteration.metrics"], adds=["metrics.row"])
    def check_update(self, event: IterationEnd) -> None:
        """Check the metric of the update. Spikes are not added to the values that later updates are compared with."""
        value = self._value(event)
        if value is None:
            return
        middle, sigma = _spread(self._values) if len(self._values) == self.window else (0.0, math.inf)
        deviations = (value - middle) / sigma if math.isfinite(value) else math.inf
        if abs(deviations) <= self.threshold:
            self._values = [*self._values, value][-self.window :]
            self._in_a_row = 0
            return
        self._in_a_row += 1
        event.record.add({"actor/loss_spikes": Sum(1)})
        found = f"{self.metric} is {value:g} in update {event.iteration + 1} of step {event.step}"
        if math.isfinite(value):
            side = "above" if deviations > 0 else "below"
            found += (
                f", {abs(deviations):.1f} robust standard deviations {side} the median {middle:g} of the last "
                f"{self.window} updates"
            )
        _LOG.warning("%s; loss_spike_guard allows %g", found, self.threshold)
        if self.action == "stop":
            event.control.stop(found)
        elif self.action == "rollback":
            self._roll_back(found, event.step)
            event.record.add({"actor/rollbacks": Sum(1)})

    @on(StepStart, priority=Priority.PREPARE)
    def copy_learner(self, event: StepStart) -> None:
        """Copy the learner, for a rollback."""
        if self.action == "rollback":
            self._copy = self.run.capture_learner(event.step - 1)

    def _value(self, event: IterationEnd) -> float | None:
        """Return the metric; None, with one warning, if it is not a number or is missing."""
        value = plain(event.metrics.get(self.metric))
        if isinstance(value, Real):
            self._known = True
            if not math.isfinite(value) and plain(event.metrics.get(SKIPPED)):
                return None
            return float(value)
        if not self._known:
            self._known = True
            found = f"is a {type(value).__name__}, not a number," if self.metric in event.metrics else "is missing"
            _LOG.warning(
                "loss_spike_guard has no effect: its metric '%s' %s in update %d of step %d.%s",
                self.metric,
                found,
                event.iteration + 1,
                event.step,
                did_you_mean(self.metric, event.metrics.keys() - {self.metric}),
            )
        return None

    def _roll_back(self, found: str, step: int) -> None:
        if self._in_a_row > self.limit:
            raise RunError(f"{found}: {self._in_a_row} spikes in a row; loss_spike_guard rolls back {self.limit}")
        assert self._copy is not None
        self.run.restore_learner(self._copy, step=step)


def _spread(values: Sequence[float]) -> tuple[float, float]:
    """Return the median, and a standard deviation that is robust to outliers."""
    middle = median(values)
    sigma = _MAD_TO_SIGMA * median(abs(value - middle) for value in values)
    return middle, max(sigma, _MIN_SPREAD * median(map(abs, values)), 1e-12)
