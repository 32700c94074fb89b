"""Sinks: the destinations that the rows of a run are written to."""

from __future__ import annotations

__all__ = ["console", "csv", "dashboard", "jsonl", "stored_rows"]
