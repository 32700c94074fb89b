"""Process engine: worker processes that map one copy of the weights."""

from __future__ import annotations

__all__ = [
    "broadcast",
    "engine",
    "handle",
    "inbox",
    "main_module",
    "messages",
    "orphans",
    "pool",
    "process_exit",
    "shared_memory",
    "worker",
]
