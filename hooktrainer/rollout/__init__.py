"""Rollout engines, which sample trajectories with their own copy of the published weights."""

from __future__ import annotations

__all__ = [
    "decode_batch",
    "engine",
    "generation",
    "generator_config",
    "inline",
    "options",
    "process",
    "sampler",
    "scheduler",
    "scoring",
    "statistics",
    "thread",
    "worker_loop",
]
