"""Notice an update that is far outside of what updates were before, and stop or roll back before it is published."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from numbers import Real
from statistics import median
from typing import Final, Literal

import attrs
from attrs.validators import ge, gt, in_

from hooktrainer import Plugin, Priority, on
from hooktrainer.errors import RunError, did_you_mean
from hooktrainer.events import IterationEnd, StepStart
from hooktrainer.metrics import Sum, plain
from hooktrainer.plugin import port, state
from hooktrainer.ports import RunState, Snapshot

_LOG: Final = logging.getLogger("hooktrainer")
_MAD_TO_SIGMA: Final = 1.4826  # of a normal distribution
_LEAST: Final = 0.05  # of the size of the values; a metric that hardly moves would call everything a spike


@attrs.define(kw_only=True)
class LossSpikeGuard(Plugin):
    """Compare a metric of every update with the median of the last ones, by their median absolute deviation."""

    metric: str = "actor/pg_loss"
    """What is watched, as the learner reports it for one update; `actor/grad_norm` often shows trouble first."""

    threshold: float = attrs.field(default=10.0, validator=gt(0))
    """Robust standard deviations above the median that make a spike."""

    window: int = attrs.field(default=50, validator=ge(4))
    """Updates that are compared with; nothing is a spike before so many were made."""

    action: Literal["warn", "stop", "rollback"] = attrs.field(
        default="warn", validator=in_(("warn", "stop", "rollback"))
    )
    """`warn` says so; `stop` ends the run after closing the step; `rollback` puts weights, optimizer and schedule back
    to the end of the step before, of which it keeps a copy."""

    limit: int = attrs.field(default=3, validator=ge(0))
    """Spikes in a row that may be rolled back; one more fails the run."""

    run: RunState = port()

    _values: list[float] = state(factory=list)
    _in_a_row: int = state(0)
    _kept: Snapshot | None = attrs.field(default=None, init=False, repr=False)
    _known: bool = attrs.field(default=False, init=False, repr=False)  # seen once, or said to be missing

    @on(IterationEnd, priority=Priority.COLLECT, needs=["iteration.metrics"], adds=["metrics.row"])
    def look(self, event: IterationEnd) -> None:
        """Judge the update. A spike is no part of what the next ones are compared with."""
        value = self._watched(event)
        if not math.isfinite(value):
            return
        middle, sigma = _spread(self._values) if len(self._values) == self.window else (value, math.inf)
        if value <= middle + self.threshold * sigma:
            self._values = [*self._values, value][-self.window :]
            self._in_a_row = 0
            return
        self._in_a_row += 1
        event.record.add({"actor/loss_spikes": Sum(1)})
        found = (
            f"{self.metric} is {value:g} in update {event.iteration + 1} of step {event.step}, "
            f"{(value - middle) / sigma:.1f} deviations above the median {middle:g} of the last {self.window} updates"
        )
        _LOG.warning("%s; loss_spike_guard allows %g", found, self.threshold)
        if self.action == "stop":
            event.control.stop(found)
        elif self.action == "rollback":
            self._roll_back(found, event.step)
            event.record.add({"actor/rollbacks": Sum(1)})

    @on(StepStart, priority=Priority.PREPARE)
    def keep(self, event: StepStart) -> None:
        """Keep the learner that a rollback goes back to."""
        if self.action == "rollback":
            self._kept = self.run.capture_learner(event.step - 1)

    def _watched(self, event: IterationEnd) -> float:
        """The metric; NaN, said once, if there is no such number."""
        value = plain(event.metrics.get(self.metric))
        if isinstance(value, Real):
            self._known = True
            return float(value)
        if not self._known:
            self._known = True
            found = f"is a {type(value).__name__}, no number," if self.metric in event.metrics else "is not there"
            _LOG.warning(
                "loss_spike_guard does nothing without its metric: '%s' %s in update %d of step %d.%s",
                self.metric,
                found,
                event.iteration + 1,
                event.step,
                did_you_mean(self.metric, event.metrics.keys() - {self.metric}),
            )
        return math.nan

    def _roll_back(self, found: str, step: int) -> None:
        if self._in_a_row > self.limit:
            raise RunError(f"{found}: {self._in_a_row} spikes in a row, loss_spike_guard rolls back {self.limit}")
        assert self._kept is not None
        self.run.restore_learner(self._kept, step=step)


def _spread(values: Sequence[float]) -> tuple[float, float]:
    """The median, and a standard deviation that single outliers do not move."""
    middle = median(values)
    sigma = _MAD_TO_SIGMA * median(abs(value - middle) for value in values)
    return middle, max(sigma, _LEAST * median(map(abs, values)), 1e-12)
