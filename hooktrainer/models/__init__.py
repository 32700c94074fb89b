"""Policies, LoRA and scoring."""

from __future__ import annotations

__all__ = ["decoder", "kv_cache", "lora", "policy", "scoring", "transformer"]
