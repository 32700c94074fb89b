"""Language models: the built-in decoder and those of Hugging Face, their tokenizers, options, adapters and scoring."""

from __future__ import annotations

__all__ = [
    "character_tokenizer",
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
