"""How much better an answer is than the others to its prompt: one advantage an answer.

Shapes: B answers. Groups may be ragged and interleaved; `groups` (B,) holds for each answer the number of its group,
counted from 0. All functions raise `NonFiniteError` for a reward that is NaN or infinite, and `ConfigError` for a
negative epsilon. A group whose rewards are all the same has the advantage 0 exactly, where rounding would give
[0.1, 0.1, 0.1] a spread; so has a group of one, with nothing to be compared with.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hooktrainer.errors import ConfigError, NonFiniteError, RunError


def grpo(rewards: Tensor, groups: Tensor, *, epsilon: float = 1e-6) -> Tensor:
    """(reward - mean) / (std + epsilon) within each group, std unbiased. Shapes (B,), (B,) -> (B,).

    Source: DeepSeekMath (2402.03300) §4.1, with the epsilon of verl; TRL has 1e-4.
    """
    check_epsilon(epsilon)
    return _where_they_differ(rewards, groups, centred(rewards, groups) / (_std(rewards, groups) + epsilon))


def dr_grpo(rewards: Tensor, groups: Tensor) -> Tensor:
    """Reward - mean within each group. Shapes (B,), (B,) -> (B,).

    Goes with the aggregation `seq-mean-token-sum-norm`: both leave out what weighs prompts and answers unequally.
    Source: Dr. GRPO (2503.20783).
    """
    return _where_they_differ(rewards, groups, centred(rewards, groups))


def rloo(rewards: Tensor, groups: Tensor) -> Tensor:
    """Reward - mean of the other rewards of the group. Shapes (B,), (B,) -> (B,).

    Source: Back to Basics (2402.14740) §2.3.
    """
    sizes = _summed(torch.ones_like(rewards), groups)
    factor = sizes / (sizes - 1).clamp(min=1)
    return _where_they_differ(rewards, groups, centred(rewards, groups) * factor)


def opo(rewards: Tensor, groups: Tensor, lengths: Tensor) -> Tensor:
    """Reward - mean of the group weighted by `lengths`, in tokens. Shapes (B,), (B,), (B,) -> (B,).

    A group without a token has the advantage 0. Source: OPO (2505.23585).
    """
    require_finite(rewards)
    weights = lengths.to(rewards.dtype)
    total = _summed(weights, groups)
    baseline = _summed(weights * rewards, groups) / total.clamp(min=1)
    return _where_they_differ(rewards, groups, torch.where(total > 0, rewards - baseline, 0.0))


def maxrl(rewards: Tensor, groups: Tensor, *, epsilon: float = 1e-6) -> Tensor:
    """(reward - mean) / (mean + epsilon) within each group. Shapes (B,), (B,) -> (B,).

    Raises `RunError` for a negative reward: a mean near 0 or below it would turn advantages round. Source: MaxRL, as in
    SkyRL, which leaves the reward itself to a group of one.
    """
    check_epsilon(epsilon)
    difference = centred(rewards, groups)
    if bool((rewards < 0).any()):
        raise RunError(
            f"maxrl divides by the mean reward, so none may be negative; found {float(rewards.min()):g}. Shift the "
            "task's score, leave out what is taken from it, or use another estimator"
        )
    return _where_they_differ(rewards, groups, difference / (_mean(rewards, groups) + epsilon))


def centred(rewards: Tensor, groups: Tensor) -> Tensor:
    """Reward - mean within each group. Shapes (B,), (B,) -> (B,). A group of one gives 0."""
    require_finite(rewards)
    return rewards - _mean(rewards, groups)


def _summed(values: Tensor, groups: Tensor) -> Tensor:
    """The sum over its group, for each answer."""
    return values.new_zeros(len(values)).index_add(0, groups, values)[groups]  # B: at least the number of groups


def require_finite(rewards: Tensor) -> None:
    """Raise `NonFiniteError`, with the first answer of them, if rewards (B,) are NaN or infinite."""
    if not bool(torch.isfinite(rewards).all()):
        place = int((~torch.isfinite(rewards)).nonzero()[0])
        raise NonFiniteError(
            f"the reward of answer {place} is {float(rewards[place])}, of which no advantage can be made; look at the "
            "task's score, and at the divergence if it is in the reward"
        )


def _mean(rewards: Tensor, groups: Tensor) -> Tensor:
    return _summed(rewards, groups) / _summed(torch.ones_like(rewards), groups)


def _std(rewards: Tensor, groups: Tensor) -> Tensor:
    sizes = _summed(torch.ones_like(rewards), groups)
    return (_summed(centred(rewards, groups) ** 2, groups) / (sizes - 1).clamp(min=1)).sqrt()


def _where_they_differ(rewards: Tensor, groups: Tensor, advantages: Tensor) -> Tensor:
    nothing = rewards.new_zeros(len(rewards))
    lowest = nothing.scatter_reduce(0, groups, rewards, "amin", include_self=False)
    highest = nothing.scatter_reduce(0, groups, rewards, "amax", include_self=False)
    return torch.where((lowest == highest)[groups], 0.0, advantages)


def check_epsilon(epsilon: Any) -> None:
    """Raise `ConfigError` unless it is a finite number of at least 0."""
    if not isinstance(epsilon, (int, float)) or not 0 <= epsilon < float("inf"):
        raise ConfigError(f"epsilon must be a finite number of at least 0, found {epsilon}")
