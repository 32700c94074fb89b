"""Tasks with prompts and scores, the prompts of a run, and a character tokenizer."""

from __future__ import annotations

__all__ = ["addition", "generated", "prompts", "reverse", "sort_digits", "tokenizer"]
