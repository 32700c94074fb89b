"""Selection of the tokens with a mask. Other values, NaN included, affect neither a result nor a gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

import torch
from torch import Tensor

MAX_LOG_RATIO: Final = 20.0
"""Exponents are clamped to ± this value; beyond it a token has no gradient."""

Reduce: TypeAlias = Callable[[Tensor], Tensor]
"""Returns the sum of a tensor over ranks. All ranks call it equally often, also a rank without a token."""


def on_one_rank(values: Tensor) -> Tensor:
    """Return the values: the `Reduce` of a run with one rank."""
    return values


def selected(values: Tensor, mask: Tensor) -> Tensor:
    """Return the values where the mask is True, else 0. Shapes (B, T), or one that broadcasts, and (B, T) -> (B, T)."""
    return torch.where(mask, values, 0.0)


def log_ratio_of(logprobs: Tensor, others: Tensor, mask: Tensor) -> Tensor:
    """Return logprobs - others where the mask is True, else 0; not clamped. Shapes (B, T) -> (B, T)."""
    return selected(logprobs, mask) - selected(others, mask)


def ratio_of(log_ratio: Tensor) -> Tensor:
    """Return exp of a log-ratio clamped to ±20. Any shape."""
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def lengths_of(mask: Tensor) -> Tensor:
    """Return the number of tokens of each answer, at least 1, as a divisor. Shape (B, T) -> (B, 1)."""
    return mask.sum(dim=1, keepdim=True).clamp(min=1)
