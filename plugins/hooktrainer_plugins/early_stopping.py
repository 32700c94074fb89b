"""Stop the run once a metric no longer improves."""

from __future__ import annotations

import logging
from typing import Final, Literal

import attrs
from attrs.validators import ge, in_, instance_of

from hooktrainer import Plugin, Priority, on
from hooktrainer.events import StepEnd
from hooktrainer.metrics import require_metric
from hooktrainer.plugin import metric, state

_LOG: Final = logging.getLogger("hooktrainer")


@attrs.define(kw_only=True)
class EarlyStopping(Plugin):
    """Stop the run after the step when a metric has not improved for some time, counted in rows that have the metric.

    NaN is no improvement. To keep the model of the best step, set `keep_best` of `checkpoint` to the same metric.
    """

    metric: str = metric("val/score/mean")
    """The key in the row, as in `metrics.jsonl`."""

    mode: Literal["max", "min"] = attrs.field(default="max", validator=in_(("max", "min")))
    """Whether a larger or a smaller value is an improvement."""

    patience: int = attrs.field(default=5, validator=[instance_of(int), ge(1)])
    """Consecutive rows without an improvement that stop the run."""

    min_delta: float = attrs.field(default=0.0, converter=float, validator=ge(0.0))
    """An improvement exceeds the best value by more than this."""

    _best: float | None = state(None)
    _best_step: int = state(0)
    _waited: int = state(0)

    @on(StepEnd, priority=Priority.REPORT, needs=["metrics.row"])
    def compare(self, event: StepEnd) -> None:
        """Compare the sealed row of the step with the best one."""
        row = event.record.row
        if self.metric not in row:
            if self._best is None and not self._waited:
                require_metric(row, self.metric, step=event.step, last=event.last, plugin="early_stopping")
            return
        value = row[self.metric]
        if self._improves(value):
            self._best, self._best_step, self._waited = value, event.step, 0
            return
        self._waited += 1
        if self._waited < self.patience:
            return
        since = "so far" if self._best is None else f"since step {self._best_step}, which has {self._best:g}"
        found = (
            f"{self.metric} has not improved {since}: it is {value:g} in step {event.step} (patience {self.patience})"
        )
        _LOG.warning(found)
        event.control.stop(found)

    def _improves(self, value: float) -> bool:
        if self._best is None:
            return value == value  # noqa: PLR0124 (NaN)
        gain = value - self._best if self.mode == "max" else self._best - value
        return gain > self.min_delta
