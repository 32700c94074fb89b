"""Policy losses, one value a token, to be minimised; `aggregation` makes one number of them.

Shapes: B answers, T tokens. A token whose mask is False is left out by selection, in the gradient too: whatever stands
there, NaN included, changes nothing, and comes out as 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs
import torch
from torch import Tensor

MAX_LOG_RATIO: Final = 20.0
"""Exponents are clamped to this, either way; beyond it a token has no gradient."""


@attrs.frozen(eq=False)
class TokenLoss:
    """What a policy loss returns."""

    loss: Tensor
    """To be minimised, shape (B, T)."""
    stats: Mapping[str, Tensor]
    """What to report as token means, detached, each of shape (B, T)."""


def ppo_clip(
    logprobs: Tensor,
    proximal: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    clip_ratio_low: float = 0.2,
    clip_ratio_high: float = 0.2,
) -> TokenLoss:
    """max(-A r, -A clip(r, 1 - low, 1 + high)) with r = exp(logprobs - proximal).

    `logprobs` (current policy), `proximal` and the bool `mask` have the shape (B, T), `advantages` (B, T) or (B, 1).
    Stats: `pg_clipfrac`, where the clipped side was taken; `ppo_kl`, proximal - current: k1 of KL(proximal || current).
    Sources: PPO (1707.06347) eq. 7; two separate bounds from DAPO (2503.14476) eq. 10.
    """
    log_ratio = torch.where(mask, logprobs - proximal, 0.0)
    advantages = torch.where(mask, advantages, 0.0)
    ratio = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    free = -advantages * ratio
    clipped = -advantages * ratio.clamp(1.0 - clip_ratio_low, 1.0 + clip_ratio_high)
    stats = {"pg_clipfrac": (clipped > free).to(free.dtype), "ppo_kl": -log_ratio.detach()}
    return TokenLoss(torch.maximum(free, clipped), stats)
