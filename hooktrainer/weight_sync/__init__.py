"""Verified weight sync: buckets, checksums, double-buffered engines, canary and rollback."""

from __future__ import annotations

__all__ = [
    "buckets",
    "checksums",
    "compatibility",
    "copying",
    "double_buffer",
    "exclusive",
    "protocol",
    "same_host",
    "torn_reads",
    "waiting",
]
