"""Verified weight sync: staging, checksums, flip, canary and rollback."""

from __future__ import annotations

__all__ = ["buckets", "checksums", "compatibility", "double_buffer", "protocol", "same_host", "torn_reads", "waiting"]
