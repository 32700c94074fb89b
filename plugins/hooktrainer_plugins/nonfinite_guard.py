"""Survive an update whose loss or gradient is NaN or infinite: it is not made, and counted."""

from __future__ import annotations

import logging
from typing import Final, Literal

import attrs
from attrs.validators import ge, in_

from hooktrainer import Plugin, Priority, on
from hooktrainer.errors import ConfigError, NonFiniteError
from hooktrainer.events import FitStart, IterationEnd, StepStart
from hooktrainer.metrics import Sum, plain
from hooktrainer.plugin import port, state
from hooktrainer.ports import Learner, RunState, Snapshot

_LOG: Final = logging.getLogger("hooktrainer")
SKIPPED: Final = "actor/skipped_updates"


@attrs.define(kw_only=True)
class NonfiniteGuard(Plugin):
    """Skip updates that are not finite, instead of failing with the first one; then go on, stop, or roll back."""

    action: Literal["skip", "stop", "rollback"] = attrs.field(
        default="skip", validator=in_(("skip", "stop", "rollback"))
    )
    """`skip` leaves the weights as they are and goes on; `stop` ends the run after closing the step; `rollback` also
    puts weights, optimizer and schedule back to the end of the step before, of which it keeps a copy."""

    limit: int = attrs.field(default=5, validator=ge(0))
    """Updates in a row that may be skipped; one more fails the run."""

    learner: Learner = port()
    run: RunState = port()

    _total: int = state(0)
    _in_a_row: int = state(0)
    _kept: Snapshot | None = attrs.field(default=None, init=False, repr=False)

    @on(FitStart, priority=Priority.CLEANUP)
    def begin(self, _event: FitStart) -> None:
        """Have the learner skip. Raises `ConfigError` if it cannot."""
        if not hasattr(self.learner, "skips_nonfinite"):
            raise ConfigError(
                f"{type(self.learner).__name__} has no attribute skips_nonfinite, which nonfinite_guard sets. Add "
                "`skips_nonfinite = False` to it; while that is True, `update` leaves out an update that is not "
                f"finite, and reports how many it left out as `{SKIPPED}`. Or take nonfinite_guard out of the plugins."
            )
        self.learner.skips_nonfinite = True

    @on(IterationEnd, priority=Priority.COLLECT, needs=["iteration.metrics"], adds=["metrics.row"])
    def look(self, event: IterationEnd) -> None:
        """Count, and act. Raises `NonFiniteError` if too many updates in a row were not finite."""
        if not plain(event.metrics.get(SKIPPED)):
            self._in_a_row = 0
            return
        self._total += 1
        self._in_a_row += 1
        found = f"update {event.iteration + 1} of step {event.step} was not finite and was not made"
        counts = f"{self._in_a_row} in a row, {self._total} in all"
        if self._in_a_row > self.limit:
            raise NonFiniteError(
                f"{found}: {counts}; nonfinite_guard allows {self.limit} in a row. Try a lower `optim.lr` or "
                "`optim.grad_clip`, or look at the scores and the sampler's log-probabilities."
            )
        _LOG.warning("%s (%s)", found, counts)
        if self.action == "stop":
            event.control.stop(f"{found} ({counts})")
        elif self.action == "rollback":
            assert self._kept is not None
            self.run.restore_learner(self._kept, step=event.step)
            event.record.add({"actor/rollbacks": Sum(1)})

    @on(StepStart, priority=Priority.PREPARE)
    def keep(self, event: StepStart) -> None:
        """Keep the learner that a rollback goes back to."""
        if self.action == "rollback":
            self._kept = self.run.capture_learner(event.step - 1)
