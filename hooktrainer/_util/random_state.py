"""The state of the global random generators of Python, NumPy and torch."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import numpy as np


def get_random_state() -> Mapping[str, object]:
    """Return the state of every global generator; torch and CUDA only where they are in use."""
    state: dict[str, object] = {
        "python": random.getstate(),
        "numpy": np.random.get_state(legacy=False),  # noqa: NPY002 (users draw from it)
    }
    if (torch := sys.modules.get("torch")) is not None:
        state["torch"] = torch.get_rng_state()
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def set_random_state(state: Mapping[str, Any]) -> None:
    """Restore the state returned by `get_random_state()`."""
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])  # noqa: NPY002 (users draw from it)
    if "torch" in state:
        import_module("torch").set_rng_state(state["torch"])
    if "cuda" in state:
        import_module("torch").cuda.set_rng_state_all(state["cuda"])


@contextmanager
def preserved_random_state() -> Iterator[None]:
    """Restore the global generators when the block ends, also if it raises."""
    state = get_random_state()
    try:
        yield
    finally:
        set_random_state(state)
