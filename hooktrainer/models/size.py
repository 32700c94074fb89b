"""The size of a model, estimated from its options without building it."""

from __future__ import annotations

import attrs


@attrs.frozen(kw_only=True)
class ModelSize:
    """The memory that a model requires at least."""

    parameters: int
    """Values of all weights."""
    cache_bytes_per_token: int = 0
    """Keys and values of one token in the cache of an engine."""
    activation_bytes_per_token: int = 0
    """Memory that a training pass holds for each token until the backward pass."""
    activation_bytes_per_pair: int = 0
    """Memory that a training pass holds for each pair of tokens of one answer, such as a mask."""
