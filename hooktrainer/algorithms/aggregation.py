"""From one loss a token to one number, over the global mini-batch.

Every mode is a sum over the answers at hand, divided by `Totals` of the whole mini-batch: the parts of any split into
micro-batches and ranks add up to the same loss and gradient. A per-micro-batch mean would depend on the split, and is
not offered. What a later filter rejects is a loss of 0 and shrinks no denominator: count before it.

Shapes: B answers, T tokens, G prompts. Masked positions may hold anything, NaN too. A batch without a token gives 0.
"""

from __future__ import annotations

import attrs
import torch
from torch import Tensor

from hooktrainer.algorithms.masking import lengths_of, selected
from hooktrainer.errors import ConfigError


@attrs.frozen
class Totals:
    """What the whole mini-batch counts, over all micro-batches and ranks."""

    tokens: int
    """Tokens with a mask."""
    sequences: int
    """Answers with at least one such token."""
    prompt_tokens: tuple[int, ...] = ()
    """Such tokens of each prompt, by the number of its group in the whole mini-batch."""

    @property
    def prompts(self) -> int:
        """Prompts with at least one such token."""
        return sum(count > 0 for count in self.prompt_tokens)


def token_mean(values: Tensor, mask: Tensor, totals: Totals) -> Tensor:
    """Mean over tokens: a long answer weighs more. Shapes (B, T), (B, T) -> (). Source: DAPO's code (2503.14476)."""
    return selected(values, mask).sum() / max(totals.tokens, 1)


def seq_mean_token_mean(values: Tensor, mask: Tensor, totals: Totals) -> Tensor:
    """Mean over answers of their token means. Shapes (B, T), (B, T) -> (). Source: GRPO (2402.03300) eq. 3."""
    return (selected(values, mask) / lengths_of(mask)).sum() / max(totals.sequences, 1)


def seq_mean_token_sum(values: Tensor, mask: Tensor, totals: Totals) -> Tensor:
    """Mean over answers of their token sums. Shapes (B, T), (B, T) -> (). Source: verl."""
    return selected(values, mask).sum() / max(totals.sequences, 1)


def seq_mean_token_sum_norm(values: Tensor, mask: Tensor, totals: Totals, max_response_length: int) -> Tensor:
    """Mean over answers of their token sums over a constant, the longest response that may be sampled.

    Shapes (B, T), (B, T) -> (). The width of a batch would not do: it changes from batch to batch. Raises `ConfigError`
    for a length below 1. Source: Dr.GRPO (2503.20783).
    """
    if max_response_length < 1:
        raise ConfigError(f"max_response_length must be at least 1 token, found {max_response_length}")
    return seq_mean_token_sum(values, mask, totals) / max_response_length


def prompt_mean(values: Tensor, mask: Tensor, totals: Totals, groups: Tensor) -> Tensor:
    """Mean over prompts of the token mean within a prompt. Shapes (B, T), (B, T), groups (B,) -> ().

    Source: DAPO (2503.14476) eq. 8, which its code does not follow; ScaleRL (2510.13786).
    """
    tokens = torch.tensor(totals.prompt_tokens, device=values.device, dtype=values.dtype).clamp(min=1)
    return (selected(values, mask) / tokens[groups][:, None]).sum() / max(totals.prompts, 1)
