"""Only tokens with a mask, by selection: what stands elsewhere, NaN too, reaches neither value nor gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

import torch
from torch import Tensor

MAX_LOG_RATIO: Final = 20.0
"""Exponents are clamped to this, either way; beyond it a token has no gradient."""

Reduce: TypeAlias = Callable[[Tensor], Tensor]
"""Adds a tensor up over ranks. Every rank has to call it as often as the others, one without a token too."""


def on_one_rank(values: Tensor) -> Tensor:
    """The `Reduce` of a run with one rank."""
    return values


def selected(values: Tensor, mask: Tensor) -> Tensor:
    """The values where the mask is True, else 0. Shapes (B, T), or what broadcasts to it, and (B, T) -> (B, T)."""
    return torch.where(mask, values, 0.0)


def log_ratio_of(logprobs: Tensor, others: Tensor, mask: Tensor) -> Tensor:
    """The difference where the mask is True, else 0; not clamped yet. Shapes (B, T) -> (B, T)."""
    return selected(logprobs, mask) - selected(others, mask)


def ratio_of(log_ratio: Tensor) -> Tensor:
    """Exp of a log-ratio clamped to ±20. Any shape."""
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def lengths_of(mask: Tensor) -> Tensor:
    """Tokens of each answer, at least 1, so that one can divide by it. Shape (B, T) -> (B, 1)."""
    return mask.sum(dim=1, keepdim=True).clamp(min=1)
