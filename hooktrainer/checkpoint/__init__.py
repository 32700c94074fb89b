"""Checkpoints: what a run keeps, how it is encoded, and where it is stored."""

from __future__ import annotations

__all__ = ["codec", "directory", "run_state", "store", "writer"]
