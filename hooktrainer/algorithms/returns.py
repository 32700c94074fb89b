"""What is still to come after a token: rewards of tokens, returns, and the advantages made of them.

Shapes: B answers, T tokens. Observation tokens inside of an answer have the mask False: nothing is discounted over
them, and whatever stands there, NaN too, comes out as 0. `reduce` adds a tensor up over ranks; statistics are then
those of the global mini-batch, and every rank has to take part, one without a token too.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hooktrainer.algorithms.advantages import centred, require_finite
from hooktrainer.algorithms.masking import Reduce, on_one_rank, selected
from hooktrainer.errors import RunError


def token_rewards(
    rewards: Tensor, mask: Tensor, kl: Tensor | None = None, *, kl_coeff: float = 0.0, at: Tensor | None = None
) -> Tensor:
    """The reward of an answer on its last token with a mask, and -kl_coeff · kl on every one. (B,), (B, T) -> (B, T).

    `kl` (B, T) is a divergence of the proximal policy from the reference. `at` (B,) puts rewards elsewhere. An answer
    without a token, which was filtered or is empty, has no place for its reward and is left out. Raises `RunError` for
    a reward that is put where the mask is False, `NonFiniteError` for one that is not finite. Source: verl.
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
    """G_t = r_t + gamma · G_{t+1} over tokens with a mask. Shapes (B, T), (B, T) -> (B, T). Source: REINFORCE."""
    rewards = selected(token_rewards, mask)
    running = rewards.new_zeros(len(rewards))
    columns = []
    for t in reversed(range(rewards.shape[1])):
        running = torch.where(mask[:, t], rewards[:, t] + gamma * running, running)
        columns.append(running)
    return selected(torch.stack(columns[::-1], dim=1), mask) if columns else rewards


def whiten(values: Tensor, mask: Tensor, *, reduce: Reduce = on_one_rank) -> Tensor:
    """(x - mean) / sqrt(var + 1e-8) over the tokens with a mask, var unbiased. Shapes (B, T), (B, T) -> (B, T).

    Raises `RunError` if fewer than 2 tokens have a mask. Source: verl.
    """
    values = selected(values, mask)
    total, count = reduce(torch.stack([values.sum(), mask.sum().to(values.dtype)]))
    if count < 2:
        raise RunError(
            f"whitening needs at least 2 tokens, and the mini-batch has {int(count)}: use a larger "
            "trainer.ppo_mini_batch_size, leave fewer answers out (algorithm.overlong_filtering), or take an estimator "
            "that does not whiten"
        )
    deviations = selected(values - total / count, mask)
    variance = reduce((deviations**2).sum()) / (count - 1)
    whitened: Tensor = deviations / (variance + 1e-8).sqrt()
    return whitened


def reinforce_plus_plus(
    token_rewards: Tensor, mask: Tensor, *, gamma: float = 1.0, reduce: Reduce = on_one_rank
) -> Tensor:
    """Discounted returns, whitened over the global mini-batch. Shapes (B, T), (B, T) -> (B, T).

    Source: REINFORCE++ (2501.03262) §3, with the KL penalty inside of the token rewards.
    """
    return whiten(discounted_returns(token_rewards, mask, gamma=gamma), mask, reduce=reduce)


def reinforce_plus_plus_baseline(
    rewards: Tensor, groups: Tensor, mask: Tensor, *, reduce: Reduce = on_one_rank
) -> Tensor:
    """Reward - mean of its group on every token, whitened over the global mini-batch. (B,), (B,), (B, T) -> (B, T).

    All answers to a prompt must be on one rank. Source: REINFORCE++ (2501.03262), the form with a group baseline.
    """
    return whiten(centred(rewards, groups)[:, None].expand(mask.shape), mask, reduce=reduce)


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
    """Generalised advantages, whitened over the global mini-batch, and returns. Shapes (B, T) each -> two of (B, T).

    `values` (B, T) are the critic's before each token; `bootstrap` (B,) is its value after the last one, 0 if left out.
    Returns are values + advantages before whitening. Source: GAE (1506.02438), whitened as in verl.
    """
    values = selected(values, mask)
    advantages = _advantages(selected(token_rewards, mask), values, mask, gamma=gamma, lam=lam, after=bootstrap)
    return whiten(advantages, mask, reduce=reduce), advantages + values


def _advantages(
    rewards: Tensor, values: Tensor, mask: Tensor, *, gamma: float, lam: float, after: Tensor | None
) -> Tensor:
    coming = values.new_zeros(len(values))
    following = coming if after is None else after
    columns = []
    for t in reversed(range(values.shape[1])):
        surprise = rewards[:, t] + gamma * following - values[:, t]
        coming = torch.where(mask[:, t], surprise + gamma * lam * coming, coming)
        following = torch.where(mask[:, t], values[:, t], following)
        columns.append(coming)
    return selected(torch.stack(columns[::-1], dim=1), mask) if columns else values


def _check_places(allowed: Tensor, at: Tensor) -> None:
    if not bool(allowed.all()):
        row = int((~allowed).nonzero()[0])
        raise RunError(
            f"the reward of answer {row} is put on token {int(at[row])}, which has no mask; a reward belongs on one of "
            "the tokens that the policy sampled"
        )
