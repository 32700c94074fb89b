"""Checkpoints: the state of a run, its encoding, and its storage on disk."""

from __future__ import annotations

__all__ = ["background", "codec", "run_state", "store"]
