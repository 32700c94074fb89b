"""Tasks, their prompts and their tokenizer."""

from __future__ import annotations

__all__ = ["addition", "generated", "prompts", "reverse", "sort_digits", "tokenizer"]
