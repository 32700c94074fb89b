"""Aggregation of the losses of tokens to one number, over the global mini-batch.

Every mode is a sum over the given answers, divided by the `Totals` of the whole mini-batch. Micro-batches and ranks
therefore add up to the same loss and gradient, however the mini-batch is split. A mean per micro-batch would depend on
the split and is not offered. A rejected token has the loss 0 and still counts in every denominator.

Shapes: B answers, T tokens. Values at masked positions are ignored, NaN included. A batch without a token gives 0.
"""

from __future__ import annotations

import attrs
import torch
from torch import Tensor

from hooktrainer.algorithms.masking import lengths_of, selected
from hooktrainer.errors import ConfigError


@attrs.frozen
class Totals:
    """Counts of the whole mini-batch, over all micro-batches and ranks."""

    tokens: int
    """Number of tokens with a mask."""
    sequences: int
    """Number of answers with at least one such token."""
    prompt_tokens: tuple[int, ...] = ()
    """Number of such tokens of each prompt, by the index of its group in the whole mini-batch."""

    @property
    def prompts(self) -> int:
        """Number of prompts with at least one such token."""
        return sum(count > 0 for count in self.prompt_tokens)


def token_mean(values: Tensor, mask: Tensor, totals: Totals) -> Tensor:
    """Return the mean over tokens, in which long answers weigh more. Shapes (B, T), (B, T) -> ().

    Source: the code of DAPO (2503.14476).
    """
    return selected(values, mask).sum() / max(totals.tokens, 1)


def seq_mean_token_mean(values: Tensor, mask: Tensor, totals: Totals) -> Tensor:
    """Return the mean over answers of their token means. Shapes (B, T), (B, T) -> ().

    Source: GRPO (2402.03300) eq. 3.
    """
    return (selected(values, mask) / lengths_of(mask)).sum() / max(totals.sequences, 1)


def seq_mean_token_sum(values: Tensor, mask: Tensor, totals: Totals) -> Tensor:
    """Return the mean over answers of their token sums. Shapes (B, T), (B, T) -> (). Source: verl."""
    return selected(values, mask).sum() / max(totals.sequences, 1)


def seq_mean_token_sum_norm(values: Tensor, mask: Tensor, totals: Totals, max_response_length: int) -> Tensor:
    """Return the mean over answers of their token sums, divided by the constant `max_response_length`.

    Shapes (B, T), (B, T) -> (). The width of the batch is no substitute, since it varies. Raises `ConfigError` for a
    length below 1. Source: Dr.GRPO (2503.20783).
    """
    if max_response_length < 1:
        raise ConfigError(f"max_response_length must be at least 1 token, found {max_response_length}")
    return seq_mean_token_sum(values, mask, totals) / max_response_length


def prompt_mean(values: Tensor, mask: Tensor, totals: Totals, groups: Tensor) -> Tensor:
    """Return the mean over prompts of the token mean within a prompt. Shapes (B, T), (B, T), groups (B,) -> ().

    Source: DAPO (2503.14476) eq. 8, from which its code differs; ScaleRL (2510.13786).
    """
    tokens = torch.tensor(totals.prompt_tokens, device=values.device, dtype=values.dtype).clamp(min=1)
    return (selected(values, mask) / tokens[groups][:, None]).sum() / max(totals.prompts, 1)
