"""The formulas in plain loops over Python floats; they share no code with the functions that are tested.

Arguments are nested lists. `rows(mask)` gives the places of tokens with a mask; a result is 0 elsewhere.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

Row: TypeAlias = list[float]
Table: TypeAlias = list[Row]


def rows(mask: Sequence[Sequence[bool]]) -> list[list[int]]:
    return [[t for t, inside in enumerate(row) if inside] for row in mask]


def table(mask: Sequence[Sequence[bool]], value: Callable[[int, int], float]) -> Table:
    return [[value(i, t) if inside else 0.0 for t, inside in enumerate(row)] for i, row in enumerate(mask)]


def exp(x: float) -> float:
    return math.exp(min(max(x, -20.0), 20.0))


def members(groups: Sequence[int], i: int) -> list[int]:
    return [j for j, group in enumerate(groups) if group == groups[i]]


def advantage(kind: str, rewards: Row, groups: list[int], lengths: list[int], i: int) -> float:
    own = [rewards[j] for j in members(groups, i)]
    if max(own) == min(own):
        return 0.0
    mean = statistics.fmean(own)
    if kind == "grpo":
        return (rewards[i] - mean) / (statistics.stdev(own) + 1e-6)
    if kind == "maxrl":
        return (rewards[i] - mean) / (mean + 1e-6)
    if kind == "rloo":
        return rewards[i] - statistics.fmean(rewards[j] for j in members(groups, i) if j != i)
    if kind == "opo":
        total = sum(lengths[j] for j in members(groups, i))
        weighted = sum(lengths[j] * rewards[j] for j in members(groups, i))
        return rewards[i] - weighted / total if total else 0.0
    return rewards[i] - mean


def whiten(values: Table, mask: Any) -> Table:
    flat = [values[i][t] for i, places in enumerate(rows(mask)) for t in places]
    mean, var = statistics.fmean(flat), statistics.variance(flat)
    return table(mask, lambda i, t: (values[i][t] - mean) / math.sqrt(var + 1e-8))


def discounted(rewards: Table, mask: Any, gamma: float) -> Table:
    places = rows(mask)

    def of(i: int, t: int) -> float:
        later = [s for s in places[i] if s >= t]
        return sum(gamma**n * rewards[i][s] for n, s in enumerate(later))

    return table(mask, of)


def gae(rewards: Table, values: Table, mask: Any, gamma: float, lam: float) -> tuple[Table, Table]:
    """Return GAE as an explicit sum of discounted TD errors, without recursion."""
    places = rows(mask)

    def surprise(i: int, n: int) -> float:
        following = values[i][places[i][n + 1]] if n + 1 < len(places[i]) else 0.0
        return rewards[i][places[i][n]] + gamma * following - values[i][places[i][n]]

    def of(i: int, t: int) -> float:
        start = places[i].index(t)
        return sum((gamma * lam) ** (n - start) * surprise(i, n) for n in range(start, len(places[i])))

    raw = table(mask, of)
    return whiten(raw, mask), table(mask, lambda i, t: raw[i][t] + values[i][t])


def clipped(ratio: float, advantage: float, low: float, high: float, c: float | None = None) -> float:
    inside = min(max(ratio, 1 - low), 1 + high)
    loss = max(-advantage * ratio, -advantage * inside)
    return min(loss, -c * advantage) if c is not None and advantage < 0 else loss


def log_mean(current: Table, proximal: Table, places: Iterable[int], i: int) -> float:
    return statistics.fmean(current[i][t] - proximal[i][t] for t in places)


def weight(kind: str, log_ratio: Row, places: list[int], t: int, low: float, high: float) -> float:
    total = sum(log_ratio[s] for s in places)
    product, mean, own = exp(total), exp(total / len(places)), exp(log_ratio[t])
    if kind.startswith("tis"):
        ratio = own if kind == "tis_token" else product
        return min(max(ratio, low), high)
    if kind.startswith("mask"):
        return float(low <= (mean if kind == "mask_geometric" else product) <= high)
    ratio = product if kind == "mis_sequence" else own
    return ratio if low <= ratio <= high else 0.0


def divergence(kind: int, log_ratio: float) -> float:
    return [log_ratio, log_ratio**2 / 2, math.exp(log_ratio) - log_ratio - 1][kind - 1]


def passes(criterion: str, bound: Any, log_ratio: Row, places: list[int], t: int) -> bool:
    scope, kind = criterion.rpartition("_")[0], int(criterion[-1])
    values = [divergence(kind, log_ratio[s]) for s in places]
    one = divergence(kind, log_ratio[t])
    value = {"token": one, "seq_sum": sum(values), "seq_mean": statistics.fmean(values), "seq_max": max(values)}[scope]
    return bound[0] <= exp(value) <= bound[1] if kind == 1 else value <= bound


def aggregated(mode: str, loss: Table, mask: Any, groups: list[int], longest: int) -> float:
    places = rows(mask)
    sums = [sum(loss[i][t] for t in own) for i, own in enumerate(places)]
    answers = [i for i, own in enumerate(places) if own]
    if mode == "token-mean":
        return sum(sums) / sum(map(len, places))
    if mode == "prompt-mean":
        prompts = sorted({groups[i] for i in answers})
        own = [[i for i in answers if groups[i] == prompt] for prompt in prompts]
        return statistics.fmean(sum(sums[i] for i in some) / sum(len(places[i]) for i in some) for some in own)
    divisor = {"seq-mean-token-sum": lambda _: 1, "seq-mean-token-sum-norm": lambda _: longest}
    of = divisor.get(mode, lambda i: len(places[i]))
    return statistics.fmean(sums[i] / of(i) for i in answers)
