"""Log-probabilities and entropy of a policy, at its sampling temperature."""

from __future__ import annotations

import torch
from torch import Tensor


def log_policy(logits: Tensor, temperature: float) -> Tensor:
    """Return the log-probabilities of all tokens, at least in float32. Shape (..., V) -> (..., V)."""
    wide = logits if logits.dtype == torch.float64 else logits.float()
    # A division by 1 would hold all logits a second time.
    return torch.log_softmax(wide if temperature == 1.0 else wide / temperature, dim=-1)


def of_tokens(log_policy: Tensor, tokens: Tensor) -> Tensor:
    """Return the log-probabilities of the given tokens. Shapes (..., V), (...) -> (...)."""
    return torch.gather(log_policy, -1, tokens[..., None]).squeeze(-1)


def entropy(log_policy: Tensor) -> Tensor:
    """Return -Σ p log p in nats, also where p underflows to 0. Shape (..., V) -> (...).

    It is computed from log p, since the logarithm of a p that underflowed has no finite gradient.
    """
    lowest = torch.finfo(log_policy.dtype).min
    return -(log_policy.exp() * log_policy.clamp(min=lowest)).sum(dim=-1)
