"""Tasks with prompts and scores: generated ones, files of data, mixtures; and the prompts of a run."""

from __future__ import annotations

__all__ = [
    "addition",
    "dataset",
    "files",
    "generated",
    "mixture",
    "prompts",
    "reasoning_gym",
    "reverse",
    "rewards",
    "sort_digits",
]
