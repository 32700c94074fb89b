"""Advantages, losses and corrections as pure functions of tensors."""

from __future__ import annotations

__all__ = [
    "advantages",
    "aggregation",
    "arguments",
    "corrections",
    "criteria",
    "divergence",
    "kl",
    "logprobs",
    "masking",
    "options",
    "policy_losses",
    "proximal",
    "registry",
    "rejection",
    "result_checks",
    "returns",
    "shaping",
    "stats",
]
