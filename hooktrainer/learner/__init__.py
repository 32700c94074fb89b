"""The policy-gradient learner: batches, losses, optimizer, schedule and their state."""

from __future__ import annotations

__all__ = [
    "batch",
    "batch_metrics",
    "critic",
    "distributed",
    "experience",
    "forward",
    "functions",
    "micro_batches",
    "objective",
    "off_policy",
    "optimizer",
    "options",
    "policy_gradient",
    "proximal_policy",
    "ranks",
    "schedule",
    "state",
    "statistics",
    "update_metrics",
]
