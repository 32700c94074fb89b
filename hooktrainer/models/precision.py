"""Conversion of weights in half precision to float32.

bfloat16 has 8 significant bits: a weight that changes by less than 1/512 of its size does not change at all. Usual
learning rates are below that. Training in float32 keeps the small updates, and sampling in float32 keeps the sampler
equal to the policy that is trained.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import torch
from torch import Tensor, nn

_WIDTH: Final = torch.float32.itemsize


def to_single_precision(module: nn.Module) -> int:
    """Convert parameters and buffers that are narrower than float32, in place; return the number of them."""
    found = list(_narrow(module))
    for part, name, tensor in found:
        if isinstance(tensor, nn.Parameter):
            tensor.data, tensor.grad = tensor.data.float(), None
        else:
            setattr(part, name, tensor.float())
    return len(found)


def in_single_precision(policy: Callable[[], nn.Module]) -> nn.Module:
    """Make a policy and convert it to single precision."""
    module = policy()
    to_single_precision(module)
    return module


def _narrow(module: nn.Module) -> Iterator[tuple[nn.Module, str, Tensor]]:
    """Yield each tensor once, with the module that holds it and its name there."""
    seen = set[int]()
    for part in module.modules():
        for name, tensor in (*part.named_parameters(recurse=False), *part.named_buffers(recurse=False)):
            if tensor.is_floating_point() and tensor.itemsize < _WIDTH and id(tensor) not in seen:
                seen.add(id(tensor))
                yield part, name, tensor
