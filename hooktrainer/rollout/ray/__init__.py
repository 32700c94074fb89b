"""Ray engine: worker processes that are Ray actors, on this machine or on a cluster."""

from __future__ import annotations

__all__ = [
    "actor",
    "cluster",
    "engine",
    "handle",
    "object_store",
]
