"""Finished and running runs as an HTML page, and configurations compared over seeds."""

from __future__ import annotations

__all__ = ["comparison", "groups", "headline", "page", "studies", "training"]
