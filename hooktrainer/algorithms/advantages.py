"""Advantages of answers, relative to the other answers to the same prompt.

Shapes: B answers. Groups may differ in size and be interleaved; `groups` (B,) is the index of each answer's group,
counted from 0. All functions raise `NonFiniteError` for a reward that is NaN or infinite, and `ConfigError` for a
negative epsilon. In a group whose rewards are all equal up to rounding, advantages are exactly 0, although rounding can
give [0.1, 0.1, 0.1] a standard deviation above 0. The advantage in a group of one is 0, too.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from hooktrainer.errors import ConfigError, NonFiniteError, RunError

_ROUNDING: Final = 8
"""Difference of rewards that is rounding, in units of the smallest relative difference of their type."""


def grpo(rewards: Tensor, groups: Tensor, *, epsilon: float = 1e-6) -> Tensor:
    """Return (reward - mean) / (std + epsilon) within each group, std unbiased. Shapes (B,), (B,) -> (B,).

    Source: DeepSeekMath (2402.03300) §4.1, with the epsilon of verl; TRL has 1e-4.
    """
    check_epsilon(epsilon)
    return zero_in_equal_groups(rewards, groups, centred(rewards, groups) / (_std(rewards, groups) + epsilon))


def dr_grpo(rewards: Tensor, groups: Tensor) -> Tensor:
    """Return reward - mean within each group. Shapes (B,), (B,) -> (B,).

    Use it with the aggregation `seq-mean-token-sum-norm`: both avoid terms that weight prompts and answers unequally.
    Source: Dr. GRPO (2503.20783).
    """
    return zero_in_equal_groups(rewards, groups, centred(rewards, groups))


def rloo(rewards: Tensor, groups: Tensor) -> Tensor:
    """Return reward - mean of the other rewards of the group. Shapes (B,), (B,) -> (B,).

    Source: Back to Basics (2402.14740) §2.3.
    """
    sizes = _summed(torch.ones_like(rewards), groups)
    factor = sizes / (sizes - 1).clamp(min=1)
    return zero_in_equal_groups(rewards, groups, centred(rewards, groups) * factor)


def opo(rewards: Tensor, groups: Tensor, lengths: Tensor) -> Tensor:
    """Return reward - mean reward of the group, weighted by `lengths` in tokens. Shapes (B,), (B,), (B,) -> (B,).

    In a group without tokens the advantage is 0. Source: OPO (2505.23585).
    """
    require_finite(rewards)
    weights = lengths.to(rewards.dtype)
    total = _summed(weights, groups)
    baseline = _summed(weights * rewards, groups) / total.clamp(min=1)
    return zero_in_equal_groups(rewards, groups, torch.where(total > 0, rewards - baseline, 0.0))


def maxrl(rewards: Tensor, groups: Tensor, *, epsilon: float = 1e-6) -> Tensor:
    """Return (reward - mean) / (mean + epsilon) within each group. Shapes (B,), (B,) -> (B,).

    Raises `RunError` for a negative reward: a mean near 0 or below would invert the advantages. Source: MaxRL, as in
    SkyRL, except that there the advantage in a group of one is its reward.
    """
    check_epsilon(epsilon)
    difference = centred(rewards, groups)
    if bool((rewards < -_rounding(rewards)).any()):
        raise RunError(
            f"maxrl divides by the mean reward, so none may be negative; found {float(rewards.min()):g}. Shift the "
            "task's score, drop the penalties subtracted from it, or use another estimator"
        )
    return zero_in_equal_groups(rewards, groups, difference / (_mean(rewards, groups) + epsilon))


def centred(rewards: Tensor, groups: Tensor) -> Tensor:
    """Return reward - mean within each group; 0 in a group of one. Shapes (B,), (B,) -> (B,)."""
    require_finite(rewards)
    return rewards - _mean(rewards, groups)


def _summed(values: Tensor, groups: Tensor) -> Tensor:
    """Return the sum over the group of each answer."""
    return values.new_zeros(len(values)).index_add(0, groups, values)[groups]  # B is at least the number of groups


def require_finite(rewards: Tensor) -> None:
    """Raise `NonFiniteError` naming the first reward that is NaN or infinite, if there is one. Shape (B,)."""
    if not bool(torch.isfinite(rewards).all()):
        place = int((~torch.isfinite(rewards)).nonzero()[0])
        raise NonFiniteError(
            f"the reward of answer {place} is {float(rewards[place])}; no advantage can be computed from it. Check the "
            "task's score, and the divergence if it is in the reward"
        )


def _mean(rewards: Tensor, groups: Tensor) -> Tensor:
    return _summed(rewards, groups) / _summed(torch.ones_like(rewards), groups)


def _std(rewards: Tensor, groups: Tensor) -> Tensor:
    sizes = _summed(torch.ones_like(rewards), groups)
    return (_summed(centred(rewards, groups) ** 2, groups) / (sizes - 1).clamp(min=1)).sqrt()


def zero_in_equal_groups(rewards: Tensor, groups: Tensor, advantages: Tensor) -> Tensor:
    """Return the advantages, 0 in groups whose rewards are equal up to rounding. Shapes (B,) -> (B,)."""
    zeros = rewards.new_zeros(len(rewards))
    lowest = zeros.scatter_reduce(0, groups, rewards, "amin", include_self=False)
    highest = zeros.scatter_reduce(0, groups, rewards, "amax", include_self=False)
    size = torch.maximum(lowest.abs(), highest.abs()).clamp(min=1.0)
    equal = highest - lowest <= _rounding(rewards) * size
    return torch.where(equal[groups], 0.0, advantages)


def _rounding(rewards: Tensor) -> float:
    return _ROUNDING * torch.finfo(rewards.dtype).eps


def check_epsilon(epsilon: Any) -> None:
    """Raise `ConfigError` unless epsilon is a finite number of at least 0."""
    if not isinstance(epsilon, (int, float)) or not 0 <= epsilon < float("inf"):
        raise ConfigError(f"epsilon must be a finite number of at least 0, found {epsilon}")
