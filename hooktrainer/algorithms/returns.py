"""Rewards of tokens, returns, and the advantages computed from them.

Shapes: B answers, T tokens. Observation tokens within an answer have the mask False and add no discount.
Results are 0 where the mask is False, also if the input is NaN there. `reduce` sums a tensor over ranks, for
statistics of the global mini-batch. Every rank must call it, also one without a token.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hooktrainer.algorithms.advantages import centred, require_finite, zero_in_equal_groups
from hooktrainer.algorithms.masking import Reduce, on_one_rank, selected
from hooktrainer.errors import RunError


def token_rewards(
    rewards: Tensor, mask: Tensor, kl: Tensor | None = None, *, kl_coeff: float = 0.0, at: Tensor | None = None
) -> Tensor:
    """Return the reward of an answer on its last token with a mask, and -kl_coeff · kl on each. (B,), (B, T) -> (B, T).

    `kl` (B, T) is a divergence of the proximal policy from the reference. `at` (B,) are other positions of the rewards.
    An answer without a token, because it is filtered or empty, gets no reward. Raises `RunError` for a reward at a
    position without a mask, and `NonFiniteError` for one that is not finite. Source: verl.
    """
    require_finite(rewards)
    if at is None:
        here = mask & (mask.flip(1).cumsum(dim=1).flip(1) == 1)
    else:
        here = mask & (torch.arange(mask.shape[1], device=mask.device) == at[:, None])
        _check_places(here.any(dim=1), at)
    placed = torch.where(here, rewards[:, None], 0.0)
    return placed if kl is None or kl_coeff == 0 else placed - kl_coeff * selected(kl, mask)


def discounted_returns(token_rewards: Tensor, mask: Tensor, *, gamma: float = 1.0) -> Tensor:
    """Return G_t = r_t + gamma · G_{t+1} over tokens with a mask. Shapes (B, T), (B, T) -> (B, T).

    Source: REINFORCE (Williams, 1992).
    """
    rewards = selected(token_rewards, mask)
    running = rewards.new_zeros(len(rewards))
    columns = []
    for t in reversed(range(rewards.shape[1])):
        running = torch.where(mask[:, t], rewards[:, t] + gamma * running, running)
        columns.append(running)
    return selected(torch.stack(columns[::-1], dim=1), mask) if columns else rewards


def whiten(values: Tensor, mask: Tensor, *, reduce: Reduce = on_one_rank) -> Tensor:
    """Return (x - mean) / sqrt(var + 1e-8) over tokens with a mask, var unbiased. Shapes (B, T), (B, T) -> (B, T).

    Raises `RunError` if fewer than 2 tokens have a mask. Source: verl.
    """
    values = selected(values, mask)
    total, count = reduce(torch.stack([values.sum(), mask.sum().to(values.dtype)]))
    if count < 2:
        raise RunError(
            f"whitening needs at least 2 tokens, and the mini-batch has {int(count)}: use a larger "
            "trainer.ppo_mini_batch_size, filter fewer answers (algorithm.overlong_filtering), or choose an estimator "
            "that does not whiten"
        )
    deviations = selected(values - total / count, mask)
    variance = reduce((deviations**2).sum()) / (count - 1)
    whitened: Tensor = deviations / (variance + 1e-8).sqrt()
    return whitened


def reinforce_plus_plus(
    token_rewards: Tensor, mask: Tensor, *, gamma: float = 1.0, reduce: Reduce = on_one_rank
) -> Tensor:
    """Return discounted returns, whitened over the global mini-batch. Shapes (B, T), (B, T) -> (B, T).

    Source: REINFORCE++ (2501.03262) §3, with the KL penalty in the token rewards.
    """
    return whiten(discounted_returns(token_rewards, mask, gamma=gamma), mask, reduce=reduce)


def reinforce_plus_plus_baseline(
    rewards: Tensor, groups: Tensor, mask: Tensor, *, reduce: Reduce = on_one_rank
) -> Tensor:
    """Return reward - mean of the group on every token, whitened over the global mini-batch.

    Shapes (B,), (B,), (B, T) -> (B, T). All answers to a prompt must be on one rank. Source: REINFORCE++ (2501.03262),
    the variant with a group baseline.
    """
    advantages = zero_in_equal_groups(rewards, groups, centred(rewards, groups))
    return whiten(advantages[:, None].expand(mask.shape), mask, reduce=reduce)


def gae(
    token_rewards: Tensor,
    values: Tensor,
    mask: Tensor,
    *,
    gamma: float = 1.0,
    lam: float = 1.0,
    bootstrap: Tensor | None = None,
    reduce: Reduce = on_one_rank,
) -> tuple[Tensor, Tensor]:
    """Return generalised advantages, whitened over the global mini-batch, and returns, each (B, T).

    `values` (B, T) are the values of the critic before each token, `bootstrap` (B,) those after the last one, 0 if left
    out. With δ_t = r_t + gamma · V_{t+1} - V_t, advantages are A_t = δ_t + gamma · lam · A_{t+1}; returns are
    V_t + A_t before whitening. Source: GAE (1506.02438), whitened as in verl.
    """
    values = selected(values, mask)
    advantages = _advantages(selected(token_rewards, mask), values, mask, gamma=gamma, lam=lam, after=bootstrap)
    return whiten(advantages, mask, reduce=reduce), advantages + values


def _advantages(
    rewards: Tensor, values: Tensor, mask: Tensor, *, gamma: float, lam: float, after: Tensor | None
) -> Tensor:
    advantage = values.new_zeros(len(values))
    following = advantage if after is None else after
    columns = []
    for t in reversed(range(values.shape[1])):
        delta = rewards[:, t] + gamma * following - values[:, t]
        advantage = torch.where(mask[:, t], delta + gamma * lam * advantage, advantage)
        following = torch.where(mask[:, t], values[:, t], following)
        columns.append(advantage)
    return selected(torch.stack(columns[::-1], dim=1), mask) if columns else values


def _check_places(allowed: Tensor, at: Tensor) -> None:
    if not bool(allowed.all()):
        row = int((~allowed).nonzero()[0])
        raise RunError(
            f"the reward of answer {row} is at token {int(at[row])}, which has no mask; place it on one of the "
            "tokens that the policy sampled"
        )
