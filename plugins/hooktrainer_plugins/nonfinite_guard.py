"""Skip and count updates whose loss or gradient is NaN or infinite."""

from __future__ import annotations

import logging
from typing import ClassVar, Final, Literal

import attrs
from attrs.validators import ge, in_

from hooktrainer import Plugin, Priority, on
from hooktrainer.errors import ConfigError, NonFiniteError, line_of
from hooktrainer.events import FitStart, IterationEnd, StepStart
from hooktrainer.metrics import Sum, plain
from hooktrainer.plugin import port, state
from hooktrainer.ports import Learner, RunState, Snapshot, SupportsSkipping

_LOG: Final = logging.getLogger("hooktrainer")
SKIPPED: Final = "actor/skipped_updates"


@attrs.define(kw_only=True)
class NonfiniteGuard(Plugin):
    """Skip updates that are not finite instead of failing on the first one; then continue, stop or roll back."""

    adds_metrics: ClassVar = ("actor/rollbacks",)

    action: Literal["skip", "stop", "rollback"] = attrs.field(
        default="skip", validator=in_(("skip", "stop", "rollback"))
    )
    """`skip` leaves the weights unchanged and continues; `stop` ends the run after this step. `rollback` also restores
    weights, optimizer and schedule from a copy made at the end of the previous step."""

    limit: int = attrs.field(default=5, validator=ge(0))
    """Consecutive updates that are skipped; one more fails the run."""

    learner: Learner = port()
    run: RunState = port()

    _total: int = state(0)
    _in_a_row: int = state(0)
    _copy: Snapshot | None = attrs.field(default=None, init=False, repr=False)

    @on(FitStart, priority=Priority.CLEANUP, makes=["learner.skips_nonfinite"])
    def enable_skipping(self, _event: FitStart) -> None:
        """Make the learner skip updates that are not finite. Raises `ConfigError` if it cannot."""
        if not isinstance(self.learner, SupportsSkipping):
            raise ConfigError(
                f"{type(self.learner).__name__} has no attribute skips_nonfinite, which nonfinite_guard sets. Add "
                "`skips_nonfinite = False` to the class, as documented in `hooktrainer.ports.SupportsSkipping`; while "
                "it is True, `update` must skip an update that is not finite and report the number of skipped updates "
                f"as `{SKIPPED}`. Or remove nonfinite_guard from the plugins."
            )
        try:
            self.learner.skips_nonfinite = True
        except Exception as error:
            raise ConfigError(
                f"{type(self.learner).__name__}.skips_nonfinite cannot be set, but nonfinite_guard sets it to True: "
                f"{line_of(error)}. Write `skips_nonfinite = False` in a class that is not frozen, or a property with "
                "a setter. Or remove nonfinite_guard from the plugins."
            ) from error

    @on(IterationEnd, priority=Priority.COLLECT, needs=["iteration.metrics"], adds=["metrics.row"])
    def count(self, event: IterationEnd) -> None:
        """Count skipped updates and take the action. Raises `NonFiniteError` after more than `limit` in a row."""
        if not plain(event.metrics.get(SKIPPED)):
            self._in_a_row = 0
            return
        self._total += 1
        self._in_a_row += 1
        found = f"update {event.iteration + 1} of step {event.step} was not finite and was skipped"
        counts = f"{self._in_a_row} in a row, {self._total} in all"
        if self._in_a_row > self.limit:
            raise NonFiniteError(
                f"{found}: {counts}; nonfinite_guard allows {self.limit} in a row. Try a lower `optim.lr` or "
                "`optim.grad_clip`, or check the scores and the sampler's log-probabilities."
            )
        _LOG.warning("%s (%s)", found, counts)
        if self.action == "stop":
            event.control.stop(f"{found} ({counts})")
        elif self.action == "rollback":
            assert self._copy is not None
            self.run.restore_learner(self._copy, step=event.step)
            event.record.add({"actor/rollbacks": Sum(1)})

    @on(StepStart, priority=Priority.PREPARE)
    def copy_learner(self, event: StepStart) -> None:
        """Copy the learner, for a rollback."""
        if self.action == "rollback":
            self._copy = self.run.capture_learner(event.step - 1)
