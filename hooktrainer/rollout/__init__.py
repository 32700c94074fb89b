"""Rollout engines, which sample trajectories with their own copy of the published weights."""

from __future__ import annotations

__all__ = [
    "closing",
    "conversation",
    "decode_batch",
    "engine",
    "event_loop",
    "generation",
    "generator_config",
    "inline",
    "options",
    "pool_call",
    "process",
    "ray",
    "sampler",
    "scheduler",
    "score_options",
    "score_pool",
    "scoring",
    "statistics",
    "thread",
    "turns",
    "worker_loop",
    "workers",
]
