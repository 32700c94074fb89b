"""Checksums of weights, each taken from the memory where they lie.

xxh3 of the elements in row-major order, as bytes. It guards against accidents, not against attackers; it is many times
as fast as reading memory, so that what it costs is the reading. Copying goes block by block, and both sides are read
while the block is in the cache.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import xxhash
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

    from hooktrainer.ports import Weights

BLOCK_BYTES: Final = 384 * 1024
"""What is copied at once: small enough that source and target stay in the cache until they are read again."""
_WORTH_THREADS: Final = 8 * 2**20


def checksum(values: Tensor | NDArray[Any] | float) -> int:
    """64 bits over the elements of a tensor in row-major order, in its own dtype; of an array or a number likewise."""
    return xxhash.xxh3_64_intdigest(_bytes(values).data)


def filled(targets: Weights, weights: Weights, threads: int = 1) -> Mapping[str, int]:
    """Copy weights into targets of the same shapes and dtypes; checksums of what is there then.

    With several threads, one tensor each at a time; a bucket of small ones is not worth them.
    """
    if threads == 1 or len(weights) == 1 or sum(targets[name].nbytes for name in weights) < _WORTH_THREADS:
        return {name: _filled(targets[name], weights, name) for name in weights}
    largest_first = sorted(weights, key=lambda name: -targets[name].nbytes)
    with ThreadPoolExecutor(threads, thread_name_prefix="weight_sync") as pool:
        done = pool.map(lambda name: _filled(targets[name], weights, name), largest_first)
        return dict(zip(largest_first, done, strict=True))


def _filled(target: Tensor, weights: Weights, name: str) -> int:
    if not target.is_cpu or not target.is_contiguous():
        target.copy_(weights[name])
        return checksum(target)
    into = _bytes(target)
    held = xxhash.xxh3_64()
    start = 0
    for block in weights.blocks(name) if isinstance(weights, Bucket) else _blocks(weights[name]):
        place = into[start : start + len(block)]
        np.copyto(place, block)
        held.update(place.data)
        start += len(block)
    return held.intdigest()


class Bucket(Mapping[str, "Tensor"]):
    """Tensors that go to an engine together, with the sender's checksums of them.

    To an engine it is a mapping of host tensors, contiguous and in the engine's dtypes, to be copied and not kept.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors
        self._checksums: dict[str, int] = {}

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def blocks(self, name: str) -> Iterator[NDArray[np.uint8]]:
        """The bytes of a tensor in blocks; each is read for the checksum once its receiver has copied it."""
        sent = xxhash.xxh3_64()
        for block in _blocks(self._tensors[name]):
            yield block
            sent.update(block.data)
        self._checksums[name] = sent.intdigest()

    def checksums(self) -> Mapping[str, int]:
        """By name, of what was sent."""
        for name, tensor in self._tensors.items():
            if name not in self._checksums:
                self._checksums[name] = checksum(tensor)
        return self._checksums


def _blocks(tensor: Tensor) -> Iterator[NDArray[np.uint8]]:
    flat = _bytes(tensor)
    for start in range(0, len(flat), BLOCK_BYTES):
        yield flat[start : start + BLOCK_BYTES]


def _bytes(values: Tensor | NDArray[Any] | float) -> NDArray[np.uint8]:
    """The memory of a contiguous host tensor or array; of anything else, that of a copy."""
    torch = sys.modules.get("torch")  # who holds a tensor has imported it; fakes need not pay for it
    if torch is not None and isinstance(values, torch.Tensor):
        flat = (values if values.is_cpu else values.cpu()).detach().reshape(-1)
        if flat.stride() != (1,):  # as one element or none may have it, and then no view as bytes
            flat = flat.as_strided(flat.shape, (1,))
        array: NDArray[np.uint8] = flat.view(torch.uint8).numpy()
        return array
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8)
