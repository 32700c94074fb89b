"""A cache of transformers for sequences of different lengths that are decoded together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional
from transformers import DynamicCache

KeysAndValues: TypeAlias = tuple[Tensor, Tensor]
"""Keys and values of one layer, each of shape (B, heads, L, D)."""


class HuggingFaceCache:
    """Keys and values in a `DynamicCache`. Rows end at the same place, so shorter ones start with padding.

    Layers keep all tokens, also those beyond a sliding window, which the attention mask leaves out.
    """

    def __init__(self) -> None:
        self.layers = DynamicCache()
        self.lengths: list[int] = []
        """Tokens of each row."""

    def append(self, other: HuggingFaceCache, rows: Sequence[int]) -> None:
        """Append copies of these rows of another cache."""
        selected = [(_rows(keys, rows), _rows(values, rows)) for keys, values in other._content()]
        if present := self._content():
            pairs = zip(present, selected, strict=True)
            selected = [(_stack(first[0], second[0]), _stack(first[1], second[1])) for first, second in pairs]
        self.layers = DynamicCache(selected)
        self.lengths += [other.lengths[row] for row in rows]

    def keep(self, rows: Sequence[int]) -> None:
        """Keep these rows in this order, and drop the others and the padding that all rows start with."""
        self.lengths = [self.lengths[row] for row in rows]
        longest = max(self.lengths, default=0)
        content = [(_rows(keys, rows), _rows(values, rows)) for keys, values in self._content()]
        self.layers = DynamicCache([(_end(keys, longest), _end(values, longest)) for keys, values in content])

    def _content(self) -> list[KeysAndValues]:
        layers: list[Any] = self.layers.layers
        return [(layer.keys, layer.values) for layer in layers]


def _rows(tensor: Tensor, rows: Sequence[int]) -> Tensor:
    return tensor[torch.tensor(rows, dtype=torch.long, device=tensor.device)]


def _stack(first: Tensor, second: Tensor) -> Tensor:
    """Concatenate rows of different lengths, padded with zeros at the start."""
    length = max(first.shape[2], second.shape[2])
    # Masked entries must not be NaN, since zero times NaN is NaN.
    return torch.cat([functional.pad(rows, (0, 0, length - rows.shape[2], 0)) for rows in (first, second)])


def _end(rows: Tensor, length: int) -> Tensor:
    return rows[:, :, rows.shape[2] - length :]
