"""Weights in memory that processes share: one flat buffer a set, of which modules hold views."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs
import torch
from torch import Tensor, nn

from hooktrainer.weight_sync.compatibility import place_of

_ALIGNMENT: Final = 64


@attrs.frozen
class FlatLayout:
    """Where each tensor of a state lies in a flat buffer; tied names lie at one place."""

    places: Mapping[str, tuple[int, torch.Size, torch.dtype]]
    """Offset in bytes, shape and dtype by name."""
    nbytes: int

    @classmethod
    def of(cls, state: Mapping[str, Tensor]) -> FlatLayout:
        """A layout for everything in this state."""
        offsets: dict[object, int] = {}
        places = {}
        end = 0
        for name, tensor in state.items():
            offset = offsets.setdefault(place_of(tensor), end)
            if offset == end:
                end += -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT
            places[name] = (offset, tensor.shape, tensor.dtype)
        return cls(places, end)

    def allocate(self) -> Tensor:
        """A flat buffer that goes to other processes as it is; the system frees it with the last of them."""
        flat = torch.zeros(max(self.nbytes, 1), dtype=torch.uint8)
        flat.share_memory_()  # type: ignore[no-untyped-call]
        return flat

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """The tensors in a flat buffer."""
        return {
            name: flat[offset : offset + shape.numel() * dtype.itemsize].view(dtype).view(shape)
            for name, (offset, shape, dtype) in self.places.items()
        }


def adopt(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Make a module use these tensors in place of its own parameters and buffers."""
    for named in (module.named_parameters, module.named_buffers):
        for name, tensor in named(remove_duplicate=False):
            tensor.data = tensors[name]
