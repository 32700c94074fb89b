"""Stop when the policy drifts too far from the sampler."""

from __future__ import annotations

import logging
from typing import Final, Literal

import attrs
from attrs.validators import ge, gt, in_

from hooktrainer import Plugin, Priority, on
from hooktrainer.events import StepEnd
from hooktrainer.plugin import state

_LOG: Final = logging.getLogger("hooktrainer")


@attrs.define(kw_only=True)
class KLGuard(Plugin):
    """Watch a divergence in the row of every step that has it; what is no number counts as above the limit."""

    limit: float = attrs.field(default=0.2, validator=gt(0))
    """Largest tolerated value."""

    metric: str = "actor/ppo_kl"
    """The key in the row."""

    patience: int = attrs.field(default=1, validator=ge(1))
    """Steps in a row above the limit before something is done."""

    action: Literal["warn", "stop"] = attrs.field(default="stop", validator=in_(("warn", "stop")))
    """`warn` says so; `stop` also ends the run after this step."""

    _above: int = state(0)
    _known: bool = state(False)  # whether the metric was ever there; before, it is taken for misspelt

    @on(StepEnd, priority=Priority.REPORT, needs=["metrics.row"])
    def guard(self, event: StepEnd) -> None:
        """Look at the row of the step, once it is sealed."""
        if self.metric not in event.record.row and self._known:
            return  # as in a step whose updates were all skipped
        value = event.record.row[self.metric]
        self._known = True
        self._above = 0 if value <= self.limit else self._above + 1
        if self._above < self.patience:
            return
        steps = "" if self._above == 1 else f" for {self._above} steps"
        found = f"{self.metric} {value:g} above {self.limit:g}{steps} in step {event.step}"
        _LOG.warning(found)
        if self.action == "stop":
            event.control.stop(found)
