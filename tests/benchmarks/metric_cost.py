"""Measure what collecting the metrics of a step costs, relative to lists of floats that numpy reduces.

python tests/benchmarks/metric_cost.py

A step has 8 updates of 60 plain numbers. "lists" appends them by key, and sums and averages them with rounding errors.
Times are medians of 61 interleaved rounds in microseconds.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from hooktrainer.metrics import Max, Mean, Min, Record, RuleTable, Sum, derive

UPDATES, SAMPLES, ROUNDS, WEIGHTED = 8, 128.0, 61, 4096
NAMES: Mapping[str, int] = {
    "actor/part{}/mean": 25,
    "critic/part{}/max": 10,
    "critic/part{}/min": 5,
    "perf/total_part{}": 10,
    "timing_s/part{}": 10,
}
KEYS = [name.format(number) for name, count in NAMES.items() for number in range(count)]


def step_of_hooktrainer(updates: Sequence[Mapping[str, float]], rules: RuleTable) -> tuple[float, float]:
    """Return the seconds of collecting one update, and of reducing the step."""
    record, started = Record(1), time.perf_counter()
    for values in updates:
        record.add(rules.to_metrics(values, SAMPLES))
    collected = time.perf_counter()
    record.seal(derive)
    return (collected - started) / len(updates), time.perf_counter() - collected


def step_of_lists(updates: Sequence[Mapping[str, float]], rules: RuleTable) -> tuple[float, float]:
    """Return the seconds of appending one update to lists, and of reducing them with numpy."""
    reducers: Mapping[type, Callable[[Sequence[float]], float]] = {Max: np.max, Min: np.min, Sum: np.sum, Mean: np.mean}
    reduction = {key: reducers[rules.reduction(key)] for key in KEYS}
    lists: dict[str, list[float]] = {}
    started = time.perf_counter()
    for values in updates:
        for key, value in values.items():
            lists.setdefault(key, []).append(float(value))
    collected = time.perf_counter()
    for key, found in lists.items():
        reduction[key](found)
    return (collected - started) / len(updates), time.perf_counter() - collected


def main() -> None:
    """Measure and print."""
    rng, rules = np.random.default_rng(0), RuleTable()
    updates = [dict(zip(KEYS, rng.normal(size=len(KEYS)).tolist(), strict=True)) for _ in range(UPDATES)]
    kinds = {"hooktrainer": step_of_hooktrainer, "lists": step_of_lists}
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in kinds}
    for _ in range(ROUNDS):
        for name, measure in kinds.items():
            found[name].append(measure(updates, rules))
    whole = {}
    for name, times in found.items():
        collect, reduce = (1e6 * statistics.median(part) for part in zip(*times, strict=True))
        whole[name] = statistics.median(1e6 * (UPDATES * each[0] + each[1]) for each in times)
        print(f"{name:12} collect {collect:6.0f}, reduce {reduce:6.0f}, whole step {whole[name]:6.0f}")
    print(f"whole step, hooktrainer / lists: {whole['hooktrainer'] / whole['lists']:.2f}")

    values, weights = rng.normal(size=WEIGHTED).tolist(), rng.integers(1, 300, size=WEIGHTED).astype(float).tolist()
    started = time.perf_counter()
    value = Mean.of(values, weights).value
    print(f"Mean.of {WEIGHTED} weighted values: {1e3 * (time.perf_counter() - started):.1f} ms ({value:.4f})")


if __name__ == "__main__":
    main()
