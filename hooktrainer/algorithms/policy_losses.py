"""Policy losses, one value a token, to be minimised; `aggregation` makes one number of them.

Shapes: B answers, T tokens. `logprobs` (current policy), `proximal` (the policy that the step started from),
`behaviour` (the sampler) and the bool `mask` have the shape (B, T), `advantages` (B, T) or (B, 1). A token whose mask
is False is left out by selection, in the gradient too: whatever stands there, NaN included, changes nothing, and comes
out as 0. Exponents are clamped to ±20; a token beyond that has no gradient through its ratio, and is counted.

Stats of every loss, to be averaged over tokens: `pg_clipfrac`, where a bound took the gradient or the weight;
`ppo_kl`, proximal - current: k1 of KL(proximal || current); `pg_clampfrac`, where the exponent was clamped.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import torch
from torch import Tensor

from hooktrainer.algorithms.masking import MAX_LOG_RATIO, lengths_of, log_ratio_of, ratio_of, selected
from hooktrainer.algorithms.stats import TokenStat
from hooktrainer.errors import ConfigError


@attrs.frozen(eq=False)
class TokenLoss:
    """What a policy loss returns."""

    loss: Tensor
    """To be minimised, shape (B, T)."""
    stats: Mapping[str, Tensor | TokenStat]
    """Statistics to report, by name: detached tensors of shape (B, T), reported as means over the tokens with a mask,
    or a stat with another reduction (`hooktrainer.algorithms.stats`)."""


def ppo_clip(
    logprobs: Tensor,
    proximal: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    clip_ratio_low: float = 0.2,
    clip_ratio_high: float = 0.2,
    clip_ratio_c: float | None = None,
) -> TokenLoss:
    """max(-A r, -A clip(r, 1 - low, 1 + high)) with r = exp(logprobs - proximal); with c, at most -c A where A < 0.

    Shapes: see above -> (B, T). Stats: also `pg_clipfrac_lower` with c, where that bound took the gradient. Raises
    `ConfigError` for bounds that make no sense. Sources: PPO (1707.06347) eq. 7; two separate bounds from DAPO
    (2503.14476) eq. 10; dual clip from 1912.09729.
    """
    log_ratio, advantages = log_ratio_of(logprobs, proximal, mask), selected(advantages, mask)
    loss, stats = _clipped(ratio_of(log_ratio), advantages, clip_ratio_low, clip_ratio_high)
    if clip_ratio_c is not None:
        loss, stats["pg_clipfrac_lower"] = _dual_clipped(loss, advantages, clip_ratio_c)
    return TokenLoss(loss, stats | _drift(log_ratio))


def decoupled_ppo(
    logprobs: Tensor,
    proximal: Tensor,
    behaviour: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    clip_ratio_low: float = 0.2,
    clip_ratio_high: float = 0.2,
    clip_ratio_c: float | None = None,
    behaviour_weight_cap: float | None = 5.0,
) -> TokenLoss:
    """`ppo_clip` around the proximal policy, times w = min(exp(proximal - behaviour), cap), which has no gradient.

    Shapes: see above -> (B, T). Dual clip comes before the weight. Stats: also `behaviour_weight`, and
    `behaviour_weight_capfrac`, where w was cut. Raises `ConfigError` for bounds that make no sense. Sources: decoupled
    PPO (2110.00641) §3; AReaL (2505.24298).
    """
    _check(behaviour_weight_cap is None or behaviour_weight_cap > 0, "behaviour_weight_cap > 0", behaviour_weight_cap)
    result = ppo_clip(
        logprobs,
        proximal,
        advantages,
        mask,
        clip_ratio_low=clip_ratio_low,
        clip_ratio_high=clip_ratio_high,
        clip_ratio_c=clip_ratio_c,
    )
    free = selected(ratio_of(log_ratio_of(proximal, behaviour, mask).detach()), mask)
    weight = free if behaviour_weight_cap is None else free.clamp(max=behaviour_weight_cap)
    own = {"behaviour_weight": weight, "behaviour_weight_capfrac": _share(free > weight, weight)}
    return TokenLoss(weight * result.loss, {**result.stats, **own})


def gspo(
    logprobs: Tensor,
    proximal: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    clip_ratio_low: float = 3e-4,
    clip_ratio_high: float = 4e-4,
) -> TokenLoss:
    """`ppo_clip` with one ratio an answer: the geometric mean of its tokens' ratios.

    Shapes: see above -> (B, T). The value is that of the answer on each of its tokens, the gradient of a token its own
    share. Give the mask from before any rejection, and aggregate by `seq-mean-token-mean`. Raises `ConfigError` for
    bounds that make no sense. Source: GSPO (2507.18071), in the form of its GSPO-token.
    """
    log_ratio, advantages = log_ratio_of(logprobs, proximal, mask), selected(advantages, mask)
    of_answer = (log_ratio.detach().sum(dim=1, keepdim=True) / lengths_of(mask)).expand(mask.shape)
    own = selected(logprobs, mask)
    of_token = of_answer + (own - own.detach())
    loss, stats = _clipped(ratio_of(selected(of_token, mask)), advantages, clip_ratio_low, clip_ratio_high)
    clamped = {"pg_clampfrac": _share(mask & (of_answer.abs() > MAX_LOG_RATIO), loss)}
    return TokenLoss(loss, {**stats, **_drift(log_ratio), **clamped})


def cispo(
    logprobs: Tensor,
    proximal: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    cispo_max_ratio: float = 5.0,
    cispo_min_ratio: float = 0.0,
) -> TokenLoss:
    """-w A logprobs with w = min(exp(logprobs - proximal), cispo_max_ratio), which has no gradient.

    Shapes: see above -> (B, T). The bound is the ratio itself: 1 + its epsilon_high in verl, slime, AReaL and SkyRL,
    epsilon_high in TRL. A lower bound, which the paper has not, is 0 unless given. Raises `ConfigError` for bounds that
    make no sense. Source: MiniMax-M1 (2506.13585).
    """
    _check(cispo_max_ratio > 0, "cispo_max_ratio > 0", cispo_max_ratio)
    _check(0 <= cispo_min_ratio <= cispo_max_ratio, "0 <= cispo_min_ratio <= cispo_max_ratio", cispo_min_ratio)
    log_ratio, advantages = log_ratio_of(logprobs, proximal, mask), selected(advantages, mask)
    ratio = ratio_of(log_ratio.detach())
    weight = ratio.clamp(cispo_min_ratio, cispo_max_ratio)
    stats = {"pg_clipfrac": _share(mask & (weight != ratio), weight)}
    return TokenLoss(-weight * advantages * selected(logprobs, mask), stats | _drift(log_ratio))


def _clipped(ratio: Tensor, advantages: Tensor, low: float, high: float) -> tuple[Tensor, dict[str, Tensor]]:
    _check(0 <= low < 1, "0 <= clip_ratio_low < 1", low)
    _check(high >= 0, "clip_ratio_high >= 0", high)
    free = -advantages * ratio
    clipped = -advantages * ratio.clamp(1.0 - low, 1.0 + high)
    return torch.maximum(free, clipped), {"pg_clipfrac": _share(clipped > free, free)}


def _dual_clipped(loss: Tensor, advantages: Tensor, c: float) -> tuple[Tensor, Tensor]:
    _check(c > 1, "clip_ratio_c > 1", c)
    cut = (advantages < 0) & (loss > -c * advantages)
    return torch.where(cut, -c * advantages, loss), _share(cut, loss)


def _drift(log_ratio: Tensor) -> dict[str, Tensor]:
    log_ratio = log_ratio.detach()
    return {"ppo_kl": -log_ratio, "pg_clampfrac": _share(log_ratio.abs() > MAX_LOG_RATIO, log_ratio)}


def _share(condition: Tensor, like: Tensor) -> Tensor:
    return condition.to(like.dtype)


def _check(allowed: bool, rule: str, found: object) -> None:
    if not allowed:
        raise ConfigError(f"expected {rule}, found {found}")
