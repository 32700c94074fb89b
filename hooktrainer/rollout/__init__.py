"""Rollout engines, which sample trajectories with their own copy of the published weights."""

from __future__ import annotations

__all__ = [
    "decode_batch",
    "engine",
    "generation",
    "inline",
    "options",
    "process",
    "sampler",
    "scheduler",
    "statistics",
    "thread",
    "worker_loop",
]
