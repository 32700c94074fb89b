"""Stop when the policy drifts too far from the sampler."""

from __future__ import annotations

import logging
from typing import Final, Literal

import attrs
from attrs.validators import ge, gt, in_

from hooktrainer import Plugin, Priority, on
from hooktrainer.errors import MissingMetricError, did_you_mean
from hooktrainer.events import StepEnd
from hooktrainer.metrics import Row, could_have
from hooktrainer.plugin import state

_LOG: Final = logging.getLogger("hooktrainer")


@attrs.define(kw_only=True)
class KLGuard(Plugin):
    """Watch a divergence in the row of every step that has it; NaN counts as above the limit.

    A metric that was never there is taken for misspelt and fails the run; one of validation (`val/...`) only in a step
    that was validated.
    """

    limit: float = attrs.field(default=0.2, validator=gt(0))
    """Largest tolerated value."""

    metric: str = "actor/ppo_kl"
    """The key in the row, as in `metrics.jsonl`."""

    patience: int = attrs.field(default=1, validator=ge(1))
    """Steps in a row above the limit before something is done."""

    action: Literal["warn", "stop"] = attrs.field(default="stop", validator=in_(("warn", "stop")))
    """`warn` says so; `stop` also ends the run after this step."""

    _above: int = state(0)
    _known: bool = state(False)  # whether the metric was ever there; before, it is taken for misspelt

    @on(StepEnd, priority=Priority.REPORT, needs=["metrics.row"])
    def guard(self, event: StepEnd) -> None:
        """Look at the row of the step, once it is sealed."""
        row = event.record.row
        if self.metric not in row:
            self._miss(event, row)
            return
        value = row[self.metric]
        self._known = True
        self._above = 0 if value <= self.limit else self._above + 1
        if self._above < self.patience:
            return
        steps = "" if self._above == 1 else f" for {self._above} steps"
        found = f"{self.metric} {value:g} above {self.limit:g}{steps} in step {event.step}"
        _LOG.warning(found)
        if self.action == "stop":
            event.control.stop(found)

    def _miss(self, event: StepEnd, row: Row) -> None:
        """Let a step pass that may well lack the metric. Raises `MissingMetricError` for any other."""
        if self._known:
            return  # as in a step whose updates were all skipped
        if could_have(row, self.metric):
            raise MissingMetricError(
                f"kl_guard watches '{self.metric}', which the row of step {event.step} does not have."
                f"{did_you_mean(self.metric, row)} Set its option `metric` to a key of metrics.jsonl"
            )
        if event.last:
            _LOG.warning(
                "kl_guard watched nothing: no row had a metric of validation, so '%s' neither. Add `validation` to the "
                "plugins, or set another `metric`",
                self.metric,
            )
