"""The record of a step: it collects metrics while it is open, and is sealed once into a read-only row."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, NoReturn, TypeAlias, cast

from hooktrainer.errors import MetricError, MissingMetricError, RecordError, did_you_mean
from hooktrainer.metrics.types import Metric, Term, Value, merge, reduced

_LOG: Final = logging.getLogger("hooktrainer")
STEP_KEY: Final = "training/global_step"
"""Key of the step in a row that sinks get, as in verl."""
_VALIDATION: Final = "val/"
Row: TypeAlias = Mapping[str, Any]
"""The reduced metrics of a step, read-only: a float for each key, or for `Counts` a mapping from values to counts."""
Derive: TypeAlias = Callable[[Row], Mapping[str, Value]]
"""A function that computes further values from the reduced ones; None removes a key."""


def could_have(keys: Iterable[str], metric: str) -> bool:
    """Return whether rows with these keys can contain the metric: `val/...` is only in validated steps."""
    return not metric.startswith(_VALIDATION) or any(key.startswith(_VALIDATION) for key in keys)


def require_metric(row: Row, metric: str, *, step: int, last: bool, plugin: str) -> None:
    """Raise `MissingMetricError` if the row must have the metric that an option of the plugin names, and has not.

    Log a warning in the last step if no row could have it.
    """
    if metric in row:
        return
    if could_have(row, metric):
        raise MissingMetricError(
            f"{plugin} checks the metric '{metric}', which the row of step {step} does not have."
            f"{did_you_mean(metric, row)} Set its option `metric` to a key of metrics.jsonl"
        )
    if last:
        _LOG.warning(
            "%s checked nothing: no row has a metric of validation such as '%s'. Add `validation` to the plugins, or "
            "set another `metric`",
            plugin,
            metric,
        )


class _Row(dict[str, Any]):
    """The values of a row; the error for a missing key suggests a similar one."""

    def __init__(self, step: int, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self._step = step

    def __missing__(self, key: str) -> NoReturn:
        raise MissingMetricError(
            f"the row of step {self._step} has no '{key}'.{did_you_mean(key, self)} Some metrics are absent in "
            f"some steps, such as those of validation: row.get('{key}')"
        )


def with_step(row: Row, step: int) -> Row:
    """Return a row with its integer step under `STEP_KEY`."""
    return MappingProxyType(_Row(step, {**row, STEP_KEY: step}))


def _reduction(metric: Metric | Term) -> type[Metric]:
    return metric.reduction if type(metric) is Term else cast("type[Metric]", type(metric))


class Record:
    """All metrics of one step.

    `before_seal` is called when the record is sealed and returns the durations that end then, so that they are in the
    row of their own step.
    """

    def __init__(self, step: int, before_seal: Callable[[], Mapping[str, Metric]] = dict) -> None:
        self.step = step
        self._before_seal = before_seal
        self._metrics: dict[str, Metric] = {}
        self._terms: dict[str, list[Term]] = {}
        """Newest numbers of each key, which are not in `_metrics` yet."""
        self._reductions: dict[str, type[Metric]] = {}
        self._writers: dict[str, str] = {}
        self._row: Row | None = None

    @property
    def sealed(self) -> bool:
        """Whether the row is final."""
        return self._row is not None

    @property
    def empty(self) -> bool:
        """Whether no metric was added yet."""
        return not self._reductions

    @property
    def row(self) -> Row:
        """The sealed row. Reading it raises `RecordError` while the record is open."""
        if self._row is None:
            raise RecordError(
                f"the row of step {self.step} was read before it was sealed. Read it on step_end after REDUCE, "
                'and declare needs=["metrics.row"] so that the plan checks it.'
            )
        return self._row

    def add(self, metrics: Mapping[str, Metric | Term], writer: str = "the loop") -> None:
        """Merge metrics, or numbers that are reduced when the record is sealed, into the record.

        Raises `RecordError` if the record is sealed, and `MetricError` if a value is not a `Metric` or a `Term`, or if
        its name already has another reduction. Nothing is merged in these cases.
        """
        if self.sealed:
            raise RecordError(f"{writer} added {', '.join(metrics)} to step {self.step} after its row was sealed")
        for key, metric in metrics.items():
            if key not in self._reductions or self._reductions[key] is not _reduction(metric):
                self._check(key, metric, writer)
        for key, metric in metrics.items():
            if key not in self._reductions:
                self._reductions[key], self._writers[key] = _reduction(metric), writer
            if type(metric) is Term:
                self._terms.setdefault(key, []).append(metric)
            else:
                self._merge(key, cast("Metric", metric))

    def _check(self, key: object, metric: object, writer: str) -> None:
        if not isinstance(key, str) or key == "step":
            raise MetricError(f"{writer} added a metric under {key!r}; a key is a string, and 'step' is reserved")
        if not isinstance(metric, Metric | Term):
            raise MetricError(
                f"{writer} added {key!r} as a plain {type(metric).__name__}; a record accepts metrics with a "
                "reduction: Mean, Sum, Max, Min, Last, Rate or Counts."
            )
        known, found = self._reductions.get(key), _reduction(metric)
        if known is not None and known is not found:
            raise MetricError(
                f"metric {key!r} has two reductions: {known.__name__} from {self._writers[key]}, "
                f"{found.__name__} from {writer}"
            )

    def _merge(self, key: str, metric: Metric | None = None) -> None:
        """Merge the terms of a key, and then the metric."""
        terms = self._terms.pop(key, ())
        newer = [*([reduced(terms)] if terms else []), *([] if metric is None else [metric])]
        for each in newer:
            known = self._metrics.get(key)
            self._metrics[key] = each if known is None else merge(known, each)

    def _add_last(self) -> None:
        """Add the metrics of `before_seal`, only once even if a failed seal is retried."""
        last = self._before_seal()
        self._before_seal = dict
        for key in last.keys() & self._reductions.keys():
            raise MetricError(f"{self._writers[key]} reports {key!r}, which the loop measures; rename it")
        self.add(last)

    def seal(self, derive: Derive | None = None) -> Row:
        """Reduce all metrics to the final row, with NaN counts under `nan/<key>`; `derive` computes further values."""
        if self.sealed:
            raise RecordError(f"the row of step {self.step} was sealed before")
        self._add_last()
        for key in list(self._terms):
            self._merge(key)
        values = {key: metric.value for key, metric in self._metrics.items()}
        row = {key: value for key, value in values.items() if value is not None}
        row |= {f"nan/{key}": float(metric.nans) for key, metric in self._metrics.items() if metric.nans}
        for key, value in (derive(MappingProxyType(row)) if derive else {}).items():
            if value is None:
                row.pop(key, None)
            else:
                row[key] = value
        frozen = {
            key: MappingProxyType(dict(value)) if isinstance(value, Mapping) else value for key, value in row.items()
        }
        self._row = MappingProxyType(_Row(self.step, frozen))
        return self._row
