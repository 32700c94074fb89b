"""The policy-gradient learner: batches, losses, optimizer and schedule."""

from __future__ import annotations

__all__ = [
    "adamw",
    "batch",
    "batch_metrics",
    "critic",
    "distributed",
    "experience",
    "finite",
    "forward",
    "functions",
    "micro_batches",
    "objective",
    "off_policy",
    "options",
    "policy_gradient",
    "proximal",
    "schedule",
    "state",
    "update_metrics",
]
