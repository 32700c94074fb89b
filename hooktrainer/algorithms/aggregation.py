"""From one loss a token to one number, over the global mini-batch.

Every mode is a sum over the answers at hand, divided by `Totals` of the whole mini-batch: the parts of any split into
micro-batches and ranks add up to the same loss and gradient. A per-micro-batch mean would depend on the split, and is
not offered. Shapes: B answers, T tokens. Masked positions may hold anything, NaN too.
"""

from __future__ import annotations

import attrs
import torch
from torch import Tensor


@attrs.frozen
class Totals:
    """What the whole mini-batch counts, over all micro-batches and ranks."""

    tokens: int
    """Tokens with a mask."""
    sequences: int
    """Answers with at least one such token."""


def token_mean(values: Tensor, mask: Tensor, totals: Totals) -> Tensor:
    """Mean over tokens: a long answer weighs more. Source: DAPO's code (2503.14476)."""
    return _selected(values, mask).sum() / max(totals.tokens, 1)


def seq_mean_token_mean(values: Tensor, mask: Tensor, totals: Totals) -> Tensor:
    """Mean over answers of their token means. Source: GRPO (2402.03300) eq. 3."""
    lengths = mask.sum(dim=1).clamp(min=1)
    return (_selected(values, mask).sum(dim=1) / lengths).sum() / max(totals.sequences, 1)


def seq_mean_token_sum(values: Tensor, mask: Tensor, totals: Totals) -> Tensor:
    """Mean over answers of their token sums."""
    return _selected(values, mask).sum() / max(totals.sequences, 1)


def _selected(values: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask, values, 0.0)
