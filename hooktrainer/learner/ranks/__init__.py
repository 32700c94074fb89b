"""A learner on many ranks: rank 0 runs the loop, and all other ranks follow its commands."""

from __future__ import annotations

__all__ = ["channel", "follower", "followers", "leading", "process_group", "shares"]
