"""Language models: the built-in decoder and those of Hugging Face, their tokenizers, options, adapters and scoring."""

from __future__ import annotations

__all__ = [
    "adapter_files",
    "character_tokenizer",
    "decoder",
    "decoder_config",
    "decoder_folder",
    "device",
    "huggingface",
    "huggingface_cache",
    "huggingface_files",
    "huggingface_loading",
    "huggingface_options",
    "huggingface_saving",
    "huggingface_tokenizer",
    "kv_cache",
    "lora",
    "options",
    "policy",
    "precision",
    "preparation",
    "probe",
    "saved_decoder",
    "scoring",
    "size",
    "vocabulary",
    "weight_files",
]
