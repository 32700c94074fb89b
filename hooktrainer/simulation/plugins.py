"""Plugins of every simulated run, in addition to the one that sets the staleness strategy."""

from __future__ import annotations

from collections import Counter

import attrs

from hooktrainer.events import FitStart, IterationEnd, StepEnd, WeightsSynced
from hooktrainer.plugin import Plugin, Priority, on, port
from hooktrainer.ports import Learner, RolloutEngine, WeightTransport


@attrs.define(kw_only=True)
class SimulatedSync(Plugin):
    """Publish a version at the end of every step."""

    learner: Learner = port()
    engine: RolloutEngine = port()
    transport: WeightTransport = port()

    @on(FitStart, priority=Priority.SYNC, makes=["weights.published"])
    def publish_first(self, _event: FitStart) -> None:
        """Publish version 0."""
        self.transport.publish(self.learner.weights(), 0, (self.engine,), first=True)

    @on(StepEnd, priority=Priority.SYNC, makes=["weights.published"], emits=[WeightsSynced])
    def sync(self, event: StepEnd) -> None:
        """Publish version k in step k."""
        self.transport.publish(self.learner.weights(), event.step, (self.engine,))
        event.control.emit(WeightsSynced(step=event.step, version=event.step, last=event.last))


@attrs.define(kw_only=True)
class StalenessCounter(Plugin):
    """Count trained groups by staleness."""

    counts: Counter[int] = attrs.field(factory=Counter, init=False)
    """Groups by staleness."""

    @on(IterationEnd)
    def count(self, event: IterationEnd) -> None:
        """Add the groups of one update."""
        self.counts.update(event.groups)
