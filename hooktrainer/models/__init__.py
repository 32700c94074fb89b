"""Language models: the built-in decoder and those of Hugging Face, their tokenizers, options, adapters and scoring."""

from __future__ import annotations

__all__ = [
    "character_tokenizer",
    "decoder",
    "huggingface",
    "huggingface_cache",
    "huggingface_loading",
    "huggingface_options",
    "huggingface_tokenizer",
    "kv_cache",
    "lora",
    "options",
    "policy",
    "precision",
    "preparation",
    "probe",
    "scoring",
    "size",
    "vocabulary",
]
