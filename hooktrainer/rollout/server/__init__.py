"""Server engine: inference servers of vLLM, which run beside the trainer, on this machine or on others."""

from __future__ import annotations

__all__ = [
    "connection",
    "engine",
    "errors",
    "group_feed",
    "inference_server",
    "options",
    "pool",
    "request_loop",
    "requests",
    "server_engine",
    "weight_folders",
]
