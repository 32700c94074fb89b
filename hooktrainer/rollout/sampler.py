"""Which tokens are drawn, and what the policy gave them."""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hooktrainer.algorithms.logprobs import log_policy, of_tokens

_STRIDE: Final = 2**64
"""Random numbers set aside for one answer."""


def uniforms(seed: int, number: int, n: int, length: int) -> NDArray[np.float64]:
    """The random numbers of one group, one each answer and token. Shape (n, length).

    An answer's own depend on run seed, dispatch number and its place in the group, and on nothing else: neither other
    groups nor `n` nor `length` move them.
    """
    bits = np.random.PCG64((seed, number))
    generator = np.random.Generator(bits)
    draws = np.empty((n, length))
    for row in draws:
        generator.random(out=row)
        bits.advance(_STRIDE - length)
    return draws


def choose(logits: Tensor, temperature: float, draws: Tensor | None) -> tuple[Tensor, Tensor]:
    """One token of each row and its log-probability; the most likely one without draws. (R, V), (R,) -> (R,), (R,)."""
    policy = log_policy(logits, temperature)
    tokens = policy.argmax(dim=-1) if draws is None else inverse_cdf(policy, draws)
    return tokens, of_tokens(policy, tokens)


def inverse_cdf(log_policy: Tensor, draws: Tensor) -> Tensor:
    """The token in whose part of the cumulated distribution each draw from [0, 1) lies. (B, V), (B,) -> (B,).

    In float64, so that draw and token agree on every device; a token of probability 0 is never chosen.
    """
    cumulated = log_policy.double().exp().cumsum(dim=-1)
    thresholds = draws[:, None] * cumulated[:, -1:]
    tokens = torch.searchsorted(cumulated, thresholds, right=True).squeeze(-1)
    return tokens.clamp(max=log_policy.shape[-1] - 1)  # only NaNs lie beyond, which the log-probability tells
