"""The replay buffer: groups from dispatch to training, their staleness and the ledger over them."""

from __future__ import annotations

__all__ = [
    "buffer",
    "dispatcher",
    "failures",
    "ledger",
    "options",
    "queue",
    "serialization",
    "source",
    "statistics",
    "strategies",
]
