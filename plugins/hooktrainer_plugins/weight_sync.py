"""Publish the weights at the end of every step: one step, one sync."""

from __future__ import annotations

import attrs

from hooktrainer import Plugin, Priority, on
from hooktrainer.events import FitStart, StepEnd, WeightsSynced
from hooktrainer.metrics import Sum
from hooktrainer.plugin import port
from hooktrainer.ports import Clock, Learner, ReplayBuffer, RolloutEngine, WeightTransport
from hooktrainer.rules import RuleTable


@attrs.define(kw_only=True)
class WeightSync(Plugin):
    """Bring the learner's weights to the rollout engine when a step ends, and say so once every copy is confirmed."""

    learner: Learner = port()
    engine: RolloutEngine = port()
    transport: WeightTransport = port()
    buffer: ReplayBuffer = port()
    clock: Clock = port()

    @on(FitStart, priority=Priority.SYNC, makes=["weights.published"])
    def publish_first(self, _event: FitStart) -> None:
        """Give the engine the weights to start from; this is no sync of a step."""
        self.transport.publish(self.learner.weights(), self.buffer.version, (self.engine,))

    @on(
        StepEnd,
        priority=Priority.SYNC,
        makes=["weights.published"],
        adds=["metrics.row"],
        emits=[WeightsSynced],
    )
    def sync(self, event: StepEnd) -> None:
        """Publish version k in step k. Raises `SyncError` with every engine as it was."""
        started = self.clock.now()
        reported = self.transport.publish(self.learner.weights(), event.step, (self.engine,))
        metrics = RuleTable().to_metrics(reported, samples=1)
        event.record.add({**metrics, "timing_s/weight_sync": Sum(self.clock.now() - started)})
        event.control.emit(WeightsSynced(step=event.step, version=event.step, last=event.last))
