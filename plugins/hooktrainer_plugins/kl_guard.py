"""Stop the run when the policy drifts too far from the sampling policy."""

from __future__ import annotations

import logging
from typing import Final, Literal

import attrs
from attrs.validators import ge, gt, in_

from hooktrainer import Plugin, Priority, on
from hooktrainer.events import StepEnd
from hooktrainer.metrics import require_metric
from hooktrainer.plugin import metric, state

_LOG: Final = logging.getLogger("hooktrainer")


@attrs.define(kw_only=True)
class KLGuard(Plugin):
    """Compare a metric, a divergence by default, with a limit in every row that has it.

    The size counts, because estimates of a divergence can be negative. NaN is beyond the limit.

    A metric that no row has had yet is treated as misspelt and fails the run. A metric of validation (`val/...`) fails
    the run only in a step with validation.
    """

    limit: float = attrs.field(default=0.2, validator=gt(0))
    """Largest absolute value that is allowed."""

    metric: str = metric("actor/ppo_kl")
    """The key in the row, as in `metrics.jsonl`."""

    patience: int = attrs.field(default=1, validator=ge(1))
    """Consecutive steps above the limit that trigger the action."""

    action: Literal["warn", "stop"] = attrs.field(default="stop", validator=in_(("warn", "stop")))
    """`warn` logs a warning; `stop` also ends the run after this step."""

    _above: int = state(0)
    _known: bool = state(False)  # whether a row had the metric so far

    @on(StepEnd, priority=Priority.REPORT, needs=["metrics.row"])
    def guard(self, event: StepEnd) -> None:
        """Check the sealed row of the step."""
        row = event.record.row
        if self.metric not in row:
            if not self._known:  # later, for example, updates may all be skipped
                require_metric(row, self.metric, step=event.step, last=event.last, plugin="kl_guard")
            return
        value = row[self.metric]
        self._known = True
        self._above = 0 if abs(value) <= self.limit else self._above + 1
        if self._above < self.patience:
            return
        steps = "" if self._above == 1 else f" for {self._above} steps"
        bound = f"below -{self.limit:g}" if value < 0 else f"above {self.limit:g}"
        found = f"{self.metric} {value:g} {bound}{steps} in step {event.step}"
        _LOG.warning(found)
        if self.action == "stop":
            event.control.stop(found)
