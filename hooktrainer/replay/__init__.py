"""The replay buffer: groups between dispatch and training, their staleness, and the ledger of all dispatches."""

from __future__ import annotations

__all__ = [
    "buffer",
    "dispatcher",
    "failures",
    "ledger",
    "options",
    "queue",
    "samples",
    "serialization",
    "source",
    "staleness",
    "statistics",
]
