"""Keys and values of sequences of different lengths that are decoded together."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class KVCache:
    """Key-value cache in preallocated memory. Rows are dense, so that no work is spent on empty ones."""

    def __init__(self, memory: Tensor) -> None:
        self._memory = memory
        """Shape (layers, 2, B, length, H, D)."""
        self.lengths: list[int] = []
        """Tokens of each row that every layer has processed."""
        self._rows: Tensor | None = None
        self._positions: Tensor | None = None

    def append(self, other: KVCache, rows: Sequence[int]) -> None:
        """Append copies of these rows of another cache."""
        first, width = len(self.lengths), max(other.lengths)
        index = torch.tensor(rows, device=self._memory.device)
        target = self._memory[:, :, first : first + len(rows), :width]
        target.copy_(other._memory[:, :, :, :width].index_select(2, index))
        self.lengths += [other.lengths[row] for row in rows]

    def keep(self, rows: Sequence[int]) -> None:
        """Keep these rows in this order, and drop the others."""
        moved = [(place, row) for place, row in enumerate(rows) if place != row]
        if moved:
            to, come_from = torch.tensor(moved, device=self._memory.device).unbind(1)
            width = max(self.lengths)
            self._memory[:, :, to, :width] = self._memory[:, :, come_from, :width]
        self.lengths = [self.lengths[row] for row in rows]

    def next_positions(self) -> tuple[Tensor, Tensor | None]:
        """Return positions of the next tokens, (B or 1, 1), and the keys they attend to, (B, 1, 1, K), None for all."""
        device, longest = self._memory.device, max(self.lengths)
        if min(self.lengths) == longest:
            self._positions = None
            return torch.tensor([[longest]], device=device), None
        self._positions = torch.tensor(self.lengths, device=device)
        self._rows = torch.arange(len(self.lengths), device=device)
        keys = torch.arange(longest + 1, device=device)
        return self._positions[:, None], (keys <= self._positions[:, None])[:, None, None]

    def extend(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Append (B, L, H, D) to the tokens of each row; return all keys and values so far."""
        rows, start = len(keys), max(self.lengths, default=0)
        end = start + keys.shape[1]
        memory = self._memory[layer, :, :rows, :end]
        for kept, new in zip(memory, (keys, values), strict=True):
            if self._positions is None:  # all rows have the same length
                kept[:, start:] = new
            else:
                kept[self._rows, self._positions] = new[:, 0]
        return memory[0], memory[1]
