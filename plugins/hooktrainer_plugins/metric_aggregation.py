"""Collect the metrics of every iteration and reduce them to the row of the step."""

from __future__ import annotations

from typing import ClassVar

import attrs

from hooktrainer import Plugin, Priority, on
from hooktrainer.events import FitEnd, IterationEnd, StepEnd
from hooktrainer.metrics import Last, RuleTable, derive


@attrs.define(kw_only=True)
class MetricAggregation(Plugin):
    """Merge the metrics that the updates of a step report, and seal the row once it is complete."""

    adds_metrics: ClassVar = ("training/unscored",)

    rules: dict[str, str] = attrs.field(factory=dict)
    """Reductions for plain numbers, by key or by prefix ending in `/`: mean, sum, max, min or last."""

    _table: RuleTable = attrs.field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        self._table = RuleTable(self.rules)

    @on(IterationEnd, priority=Priority.COLLECT, needs=["iteration.metrics"], adds=["metrics.row"])
    def collect(self, event: IterationEnd) -> None:
        """Add the metrics of one update, weighted by its samples."""
        event.record.add(self._table.to_metrics(event.metrics, event.samples))

    @on(StepEnd, priority=Priority.REDUCE, makes=["metrics.row"])
    def reduce(self, event: StepEnd) -> None:
        """Seal the row of the step."""
        event.record.seal(derive)

    @on(FitEnd, priority=Priority.REDUCE, adds=["metrics.row"], makes=["metrics.row"])
    def finish(self, event: FitEnd) -> None:
        """Seal the row of a complete step that failed before REDUCE; the row may lack its validation score."""
        if event.record is not None and not event.record.sealed:
            event.record.add({"training/unscored": Last(1)})
            event.record.seal(derive)
