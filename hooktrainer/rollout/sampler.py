"""Sampling of tokens from logits, with reproducible random numbers."""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hooktrainer.algorithms.logprobs import log_policy, of_tokens

_STRIDE: Final = 2**64
"""Random numbers reserved for one answer."""


def uniform_draws(seed: int, number: int, n: int, length: int) -> NDArray[np.float64]:
    """Return the uniform random numbers of a group, one for each answer and token. Shape (n, length).

    The numbers of an answer depend on the run seed, the dispatch number and its index in the group only. They do not
    change with `n`, `length` or other groups.
    """
    bits = np.random.PCG64((seed, number))
    generator = np.random.Generator(bits)
    draws = np.empty((n, length))
    for row in draws:
        generator.random(out=row)
        bits.advance(_STRIDE - length)
    return draws


def sample_tokens(logits: Tensor, temperature: float, draws: Tensor | None) -> tuple[Tensor, Tensor]:
    """Sample one token per row, with its log-probability; greedy without draws. (R, V), (R,) -> (R,), (R,)."""
    policy = log_policy(logits, temperature)
    tokens = policy.argmax(dim=-1) if draws is None else inverse_cdf(policy, draws)
    return tokens, of_tokens(policy, tokens)


def inverse_cdf(log_policy: Tensor, draws: Tensor) -> Tensor:
    """Sample by inverting the cumulative distribution at draws from [0, 1). (B, V), (B,) -> (B,).

    Computed in float64, so that a draw gives the same token on every device. A token of probability 0 is never chosen.
    """
    cumulated = log_policy.double().exp().cumsum(dim=-1)
    thresholds = draws[:, None] * cumulated[:, -1:]
    tokens = torch.searchsorted(cumulated, thresholds, right=True).squeeze(-1)
    return tokens.clamp(max=log_policy.shape[-1] - 1)  # reached only with NaNs, which the log-probability shows
