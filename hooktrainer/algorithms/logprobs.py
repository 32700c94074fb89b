"""Log-probabilities and entropy of a policy, at the temperature that it is sampled with."""

from __future__ import annotations

import torch
from torch import Tensor


def log_policy(logits: Tensor, temperature: float) -> Tensor:
    """Log-probabilities of all tokens, at least in float32. Shape (..., V) -> (..., V)."""
    wide = logits if logits.dtype == torch.float64 else logits.float()
    return torch.log_softmax(wide / temperature, dim=-1)


def of_tokens(log_policy: Tensor, tokens: Tensor) -> Tensor:
    """Log-probabilities of these tokens. Shapes (..., V), (...) -> (...)."""
    return torch.gather(log_policy, -1, tokens[..., None]).squeeze(-1)


def entropy(log_policy: Tensor) -> Tensor:
    """-Σ p log p in nats, also where p is 0 or too small for its type. Shape (..., V) -> (...).

    Log p is used as it is, since the logarithm of a p that was rounded to 0 has no finite gradient.
    """
    lowest = torch.finfo(log_policy.dtype).min
    return -(log_policy.exp() * log_policy.clamp(min=lowest)).sum(dim=-1)
