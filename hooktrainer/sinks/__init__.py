"""Sinks: the destinations that the rows of a run are written to."""

from __future__ import annotations

__all__ = ["appending", "console", "csv", "dashboard", "jsonl", "samples", "stored_rows"]
