"""A run: from YAML to a trainer. The only package that wires the others together."""

from __future__ import annotations

__all__ = ["build", "composition", "directory", "loading", "option_docs", "registry", "resume"]
