"""Checksums of weights, computed from the memory that holds them.

A checksum is xxh3 over the elements in row-major order, as bytes. It detects accidents, not attacks. Computing it is
many times faster than reading memory, so its cost is that of the read.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor


def checksum(values: Tensor | NDArray[Any] | float) -> int:
    """Return 64 bits over the elements of a tensor, an array or a number in row-major order, in its own dtype."""
    return xxhash.xxh3_64_intdigest(as_bytes(values).data)


def as_bytes(values: Tensor | NDArray[Any] | float) -> NDArray[np.uint8]:
    """Return a view of the memory of a contiguous host tensor or array, or the memory of a contiguous copy."""
    torch = sys.modules.get("torch")  # a caller with a tensor has imported torch; fakes run without it
    if torch is not None and isinstance(values, torch.Tensor):
        flat = (values if values.is_cpu else values.cpu()).detach().reshape(-1)
        if flat.stride() != (1,):  # a tensor of one or no element may have another stride, which `view` rejects
            flat = flat.as_strided(flat.shape, (1,))
        array: NDArray[np.uint8] = flat.view(torch.uint8).numpy()
        return array
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8)
