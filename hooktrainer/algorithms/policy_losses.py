"""Policy losses, one value per token, to be minimised. The functions in `aggregation` reduce them to one number.

Shapes: B answers, T tokens. `logprobs` (current policy), `proximal` (policy at the start of the step), `behaviour`
(sampler) and the bool `mask` have the shape (B, T), `advantages` (B, T) or (B, 1). The loss is 0 where the mask is
False. Values there, NaN included, affect neither the result nor the gradient. Exponents are clamped to ±20; a token
beyond that has no gradient through its ratio, and is counted.

Stats of every loss, reported as token means: `pg_clipfrac`, where a bound removed the gradient or limited the weight;
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
    """Result of a policy loss."""

    loss: Tensor
    """The loss of each token, to be minimised. Shape (B, T)."""
    stats: Mapping[str, Tensor | TokenStat] = attrs.field(factory=dict)
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
    """Return max(-A r, -A clip(r, 1 - low, 1 + high)), r = exp(logprobs - proximal); with c, at most -c A for A < 0.

    Shapes: see above -> (B, T). Further stat with c: `pg_clipfrac_lower`, where that bound removed the gradient. Raises
    `ConfigError` for invalid bounds. Sources: PPO (1707.06347) eq. 7; two separate bounds from DAPO
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
    """Return `ppo_clip` around the proximal policy, times w = min(exp(proximal - behaviour), cap), w detached.

    Shapes: see above -> (B, T). Dual clip is applied before the weight. Further stats: `behaviour_weight`, and
    `behaviour_weight_capfrac`, where w was limited. Raises `ConfigError` for invalid bounds. Sources: decoupled PPO
    (2110.00641) §3; AReaL (2505.24298).
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
    """Return `ppo_clip` with one ratio per answer, the geometric mean of the ratios of its tokens.

    Shapes: see above -> (B, T). Each token has the value of its answer and its own share of the gradient. Pass the mask
    before any rejection, and aggregate by `seq-mean-token-mean`. Raises `ConfigError` for invalid bounds. Source:
    GSPO-token (2507.18071).
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
    """Return -w A logprobs with w = min(exp(logprobs - proximal), cispo_max_ratio), w detached.

    Shapes: see above -> (B, T). The bound applies to the ratio: it is 1 + epsilon_high of verl, slime, AReaL and SkyRL,
    and epsilon_high of TRL. A lower bound, which the paper does not have, is 0 by default. Raises `ConfigError` for
    invalid bounds. Source: MiniMax-M1 (2506.13585).
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
