"""Language models: the built-in decoder, its options, LoRA adapters and scoring."""

from __future__ import annotations

__all__ = [
    "decoder",
    "kv_cache",
    "lora",
    "options",
    "policy",
    "precision",
    "preparation",
    "scoring",
    "size",
    "vocabulary",
]
