"""Sinks: where the rows of a run are written."""

from __future__ import annotations

__all__ = ["console", "dashboard", "jsonl"]
