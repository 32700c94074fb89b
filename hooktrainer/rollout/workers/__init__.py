"""Pool of workers outside the process of the engine, for any way to start them and to reach them."""

from __future__ import annotations

__all__ = [
    "broadcast",
    "engine",
    "flat_layout",
    "handle",
    "messages",
    "options",
    "pool",
    "staging",
    "worker",
]
