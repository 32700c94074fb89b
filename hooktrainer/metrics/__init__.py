"""Metrics that carry their own reduction, and the record of a step that collects them."""

from __future__ import annotations

from hooktrainer.metrics.derived import derive
from hooktrainer.metrics.record import STEP_KEY, Derive, Record, Row, could_have, require_metric, with_step
from hooktrainer.metrics.reduction import RuleTable
from hooktrainer.metrics.transfer import joined, to_host
from hooktrainer.metrics.types import (
    REDUCTIONS,
    Counts,
    Exact,
    Last,
    Max,
    Mean,
    Metric,
    Min,
    Rate,
    Reduction,
    Sum,
    Term,
    Value,
    merge,
    number,
    plain,
)

__all__ = [
    "REDUCTIONS",
    "STEP_KEY",
    "Counts",
    "Derive",
    "Exact",
    "Last",
    "Max",
    "Mean",
    "Metric",
    "Min",
    "Rate",
    "Record",
    "Reduction",
    "Row",
    "RuleTable",
    "Sum",
    "Term",
    "Value",
    "could_have",
    "derive",
    "joined",
    "merge",
    "number",
    "plain",
    "require_metric",
    "to_host",
    "with_step",
]
