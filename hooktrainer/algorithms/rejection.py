"""Rejection of tokens and answers for which the proximal policy differs too much from the sampler.

Shapes: B answers, T tokens. log ρ is proximal - behaviour log-probability. The estimates of a divergence are
k1 = log ρ, k2 = (log ρ)² / 2 and k3 = ρ - log ρ - 1. Source: verl, where the bounds of k1 apply to 1/ρ; here
they apply to ρ.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch import Tensor

from hooktrainer.algorithms.criteria import criterion_fault
from hooktrainer.algorithms.masking import MAX_LOG_RATIO, lengths_of, ratio_of, selected
from hooktrainer.errors import ConfigError, Fault


def rejection(log_ratio: Tensor, mask: Tensor, criteria: Mapping[str, Any]) -> Tensor:
    """Return where a token passes all criteria; False without a mask. Shapes (B, T), bool (B, T) -> bool (B, T).

    A criterion is a scope and an estimate. The scope is `token`, or `seq_sum`, `seq_mean` or `seq_max` over the answer.
    k1 takes the bounds [low, high] of exp(k1). k2 and k3 take an upper limit. All bounds are inclusive. There is no
    seq_max_k1. Rejected tokens still count in every denominator. Raises `ConfigError` for every criterion that
    is unknown or has a bound of the wrong type.
    """
    faults = [Fault(key, fault) for key, bound in criteria.items() if (fault := criterion_fault(key, bound))]
    if faults:
        raise ConfigError(faults)
    log_ratio, keep = selected(log_ratio.detach(), mask), mask
    for key, bound in criteria.items():
        scope, _, estimate = key.rpartition("_")
        keep = keep & _passes(_SCOPES[scope](_ESTIMATES[estimate](log_ratio), mask), bound)
    return keep


def _same(values: Tensor, _: Tensor) -> Tensor:
    return values


def _sum(values: Tensor, _: Tensor) -> Tensor:
    return values.sum(dim=1, keepdim=True)


def _mean(values: Tensor, mask: Tensor) -> Tensor:
    return values.sum(dim=1, keepdim=True) / lengths_of(mask)


def _passes(value: Tensor, bound: Any) -> Tensor:
    low, high = bound if isinstance(bound, (tuple, list)) else (None, bound)
    compared = value if low is None else ratio_of(value)
    below: Tensor = compared <= high
    return below if low is None else below & (compared >= low)


def _k1(log_ratio: Tensor) -> Tensor:
    return log_ratio


def _k2(log_ratio: Tensor) -> Tensor:
    return log_ratio**2 / 2


def _k3(log_ratio: Tensor) -> Tensor:
    clamped = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    estimate: Tensor = torch.expm1(clamped) - clamped
    return estimate


def _largest(values: Tensor, _: Tensor) -> Tensor:
    return values.amax(dim=1, keepdim=True) if values.shape[1] else values


_ESTIMATES: Final[Mapping[str, Callable[[Tensor], Tensor]]] = {"k1": _k1, "k2": _k2, "k3": _k3}
_SCOPES: Final[Mapping[str, Callable[[Tensor, Tensor], Tensor]]] = {
    "token": _same,
    "seq_sum": _sum,
    "seq_mean": _mean,
    "seq_max": _largest,  # k2 and k3 are at least 0, the value at masked positions
}
