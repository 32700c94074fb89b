"""Process engine: worker processes that map one copy of the weights."""

from __future__ import annotations

__all__ = [
    "engine",
    "handle",
    "inbox",
    "main_module",
    "orphans",
    "packing",
    "process_exit",
    "shared_memory",
    "worker",
]
