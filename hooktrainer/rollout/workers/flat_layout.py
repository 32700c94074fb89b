"""Weights in a flat buffer for each set, of which modules hold views."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs
import torch
from torch import Tensor, nn

from hooktrainer.weight_sync.compatibility import tie_key

_ALIGNMENT: Final = 64


@attrs.frozen
class FlatLayout:
    """Offsets of the tensors of a state in a flat buffer; tied names share an offset."""

    entries: Mapping[str, tuple[int, torch.Size, torch.dtype]]
    """Offset in bytes, shape and dtype, by name."""
    nbytes: int

    @classmethod
    def of(cls, state: Mapping[str, Tensor]) -> FlatLayout:
        """Return a layout for all tensors of a state."""
        offsets: dict[object, int] = {}
        entries = {}
        end = 0
        for name, tensor in state.items():
            offset = offsets.setdefault(tie_key(tensor), end)
            if offset == end:
                end += -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT
            entries[name] = (offset, tensor.shape, tensor.dtype)
        return cls(entries, end)

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """Return views of the tensors in a flat buffer."""
        return {
            name: flat[offset : offset + shape.numel() * dtype.itemsize].view(dtype).view(shape)
            for name, (offset, shape, dtype) in self.entries.items()
        }


def use_tensors(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Replace the memory of a module's parameters and buffers by these tensors."""
    for named in (module.named_parameters, module.named_buffers):
        for name, tensor in named(remove_duplicate=False):
            tensor.data = tensors[name]
