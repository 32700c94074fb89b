"""The reduction of plain numbers, which is chosen by their key.

The most specific rule applies, and a user's rule precedes a built-in rule of the same kind:

1. the exact key;
2. the last path segment: counts of evicted, dropped or discarded samples are summed; else a whole word of it decides.
   If several words match, the last one decides: `max_mean` is the mean of maxima;
3. the longest prefix of the user, a rule that ends in `/`; then `timing_s`, as any segment before the last;
4. otherwise, the mean weighted by the samples of the iteration.

Built-in rules ignore case. Only whole words match: `terminal`, `summary` and `minmax_diff` are means.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Mapping
from typing import Final

import attrs

from hooktrainer.errors import ConfigError, Fault, MetricError, did_you_mean
from hooktrainer.metrics.transfer import to_host
from hooktrainer.metrics.types import REDUCTIONS, Counts, Last, Max, Mean, Metric, Min, Reduction, Sum, Term, number

_KEYS: Final[Mapping[str, Reduction]] = {
    "training/global_step": Last,
    "training/epoch": Last,
    "training/rollout_probs_diff_valid": Last,
    "perf/num_devices": Last,
}
_WORDS: Final[Mapping[str, Reduction]] = {
    "max": Max, "maximum": Max, "min": Min, "minimum": Min, "mean": Mean, "avg": Mean, "average": Mean,
    "sum": Sum, "total": Sum, "lr": Last, "version": Last,
}  # fmt: skip
_BETWEEN_WORDS: Final = re.compile(r"[\W_]+")
_SPREADS: Final = frozenset({"median", "std", "var", "p50", "p90", "p95", "p99"})
"""Statistics that a prefix rule must not sum; their mean is the best merge."""
_TALLIES: Final = ("evicted_samples", "dropped_samples", "discarded_surplus_samples")
"""Last segments that count samples which are not trained on."""
_DURATIONS: Final = "timing_s"
"""Segment before the last one of keys that are durations, which add up."""
_OF_TALLY: Final = "_staleness/mean"
"""Suffix to a tally's key: a mean that is weighted by the tally, not by the samples of the iteration."""
_KNOWN_KEYS: Final = 4096
"""Keys whose rules are remembered."""


def _reductions(rules: Mapping[str, str]) -> dict[str, Reduction]:
    if not isinstance(rules, Mapping):
        raise ConfigError(f"rules must map keys to reductions, found {rules!r}")
    faults = [
        f"rule {key!r}: unknown reduction {name!r}; expected one of {', '.join(REDUCTIONS)}."
        f"{did_you_mean(name, REDUCTIONS)}"
        for key, name in rules.items()
        if str(name) not in REDUCTIONS
    ]
    if faults:
        raise ConfigError([Fault("", fault) for fault in faults])
    return {str(key): REDUCTIONS[name] for key, name in rules.items()}


@attrs.frozen
class RuleTable:
    """Rules that choose the reduction of a plain number by its key."""

    user: dict[str, Reduction] = attrs.field(converter=_reductions, factory=dict)
    """Rules from YAML, `{"reward/terminal": "last", "my/counters/": "sum"}`. Raises `ConfigError` with all faults."""
    _rule: Callable[[str], tuple[Reduction, str | None]] = attrs.field(init=False, eq=False, repr=False)
    """Reduction of a key and, for a mean that is weighted by a tally, the key of the tally."""

    def __attrs_post_init__(self) -> None:
        # Each update of a run reports the same keys.
        rule = functools.lru_cache(_KNOWN_KEYS)(lambda key: (self.reduction(key), _tally_of(key)))
        object.__setattr__(self, "_rule", rule)

    def reduction(self, key: str) -> Reduction:
        """Return the metric type for plain numbers under this key."""
        lowered = key.lower()
        exact = self.user.get(key) or _KEYS.get(lowered)
        if exact:
            return exact
        *path, segment = lowered.split("/")
        if segment in _TALLIES:
            return Sum
        words = _BETWEEN_WORDS.split(segment)
        for word in reversed(words):
            if word in _WORDS:
                return _WORDS[word]
        if not _SPREADS.isdisjoint(words):
            return Mean
        matching = [prefix for prefix in self.user if prefix.endswith("/") and key.startswith(prefix)]
        if matching:
            return self.user[max(matching, key=len)]
        return Sum if _DURATIONS in path else Mean

    def metric(self, key: str, value: object, samples: float) -> Metric | None:
        """Convert a value of one iteration to a metric; return None for an empty list.

        A list is first reduced to one value by its rule; for a mean, with equal weights. The number of micro-batches
        thus does not change the weight of an iteration. A mapping of values to counts is a histogram. A
        `Metric` is returned unchanged: to weight by tokens, pass `Mean.of(values, tokens)`. Raises `MetricError` with
        the key for any other value.
        """
        if isinstance(value, Metric):
            return value
        if isinstance(value, Mapping):
            return _histogram(key, value)
        kind = self.reduction(key)
        if not isinstance(value, (list, tuple)):
            plain = number(value, key)
            return Mean.of([plain], [samples]) if kind is Mean else kind.of([plain])
        if not value:
            return None
        numbers = [number(item, key) for item in value]
        if kind is not Mean:
            return kind.of(numbers)
        unweighted = Mean.of(numbers)
        weighted = Mean.of([unweighted.value], [samples]) if unweighted.nans < len(numbers) else Mean(0, 0)
        return weighted.merge(Mean(0, 0, nans=unweighted.nans))

    def to_metrics(self, values: Mapping[str, object], samples: float) -> dict[str, Metric | Term]:
        """Give each value of one iteration its reduction; `samples` is its number of trajectories, without padding."""
        on_host = to_host(values)
        found: dict[str, Metric | Term] = {}
        for key, value in on_host.items():
            reduction, tally = self._rule(key)
            weight = samples if tally is None else self._count(tally, on_host, samples)
            if type(value) is float:
                found[key] = Term(reduction, value, weight)
            elif (metric := self.metric(key, value, weight)) is not None:
                found[key] = metric
        return found

    def _count(self, tally: str, values: Mapping[str, object], samples: float) -> float:
        counted = self.metric(tally, values.get(tally, ()), samples)
        count = counted.value if counted else None
        # Without its count, every iteration has the same weight: the size of the batch is unrelated to it.
        return count if isinstance(count, float) and not math.isnan(count) else 1.0


def _tally_of(key: str) -> str | None:
    """Return the key of the count that weights this mean, or None if the samples of the iteration do."""
    tally = key.removesuffix(_OF_TALLY)
    return tally if tally != key and tally.lower().endswith(_TALLIES) else None


def _histogram(key: str, counts: Mapping[object, object]) -> Counts:
    try:
        return Counts(counts)
    except MetricError as error:
        raise MetricError(f"metric {key!r}: {error}") from error
