"""Process engine: worker processes that map one copy of the weights."""

from __future__ import annotations

__all__ = ["broadcast", "engine", "handle", "messages", "pool", "shared_memory", "worker"]
