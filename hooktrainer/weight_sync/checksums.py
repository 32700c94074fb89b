"""Checksums of weights, each taken from the memory where they lie.

xxh3 of the elements in row-major order, as bytes. It guards against accidents, not against attackers; it is many times
as fast as reading memory, so that what it costs is the reading. Copying goes block by block, and both sides are read
while the block is in the cache.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import xxhash
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

    from hooktrainer.ports import Weights

_Memory: TypeAlias = tuple[NDArray[np.uint8], NDArray[np.uint8]]
"""Of a target and its source."""
BLOCK_BYTES: Final = 512 * 1024
"""What is copied at once: small enough that source and target stay in the cache until they are read again."""
_WORTH_THREADS: Final = 8 * 2**20


def checksum(values: Tensor | NDArray[Any] | float) -> int:
    """64 bits over the elements of a tensor in row-major order, in its own dtype; of an array or a number likewise."""
    return xxhash.xxh3_64_intdigest(_bytes(values).data)


def filled(targets: Weights, weights: Weights, threads: int = 1) -> Mapping[str, int]:
    """Copy weights into targets of the same shapes and dtypes; checksums of what is there then.

    With several threads, one tensor each at a time, largest first; a bucket of small ones is not worth them.
    """
    held: dict[str, int] = {}
    memory: dict[str, _Memory] = {}
    for name in weights:
        target, source = targets[name], weights[name]
        if target.is_cpu and target.is_contiguous():
            memory[name] = _bytes(target), _bytes(source)
        else:
            target.copy_(source)
            held[name] = checksum(target)
    pairs = _copied(memory, threads)
    if isinstance(weights, Bucket):
        weights.note({name: sent for name, (_, sent) in pairs.items()})
    return held | {name: arrived for name, (arrived, _) in pairs.items()}


def _copied(memory: Mapping[str, _Memory], threads: int) -> Mapping[str, tuple[int, int]]:
    """Copy; checksums of both sides, target first."""
    if threads == 1 or len(memory) == 1 or sum(len(into) for into, _ in memory.values()) < _WORTH_THREADS:
        return {name: _copy(pair) for name, pair in memory.items()}
    waiting = iter(sorted(memory, key=lambda name: -len(memory[name][0])))

    def work() -> list[tuple[str, tuple[int, int]]]:
        return [(name, _copy(memory[name])) for name in waiting]

    with ThreadPoolExecutor(threads - 1, thread_name_prefix="weight_sync") as pool:
        others = [pool.submit(work) for _ in range(threads - 1)]
        return dict(itertools.chain(work(), *(other.result() for other in others)))


def _copy(pair: _Memory) -> tuple[int, int]:
    into, out = pair
    held, sent = xxhash.xxh3_64(), xxhash.xxh3_64()
    for start in range(0, len(into), BLOCK_BYTES):
        block = slice(start, start + BLOCK_BYTES)
        np.copyto(into[block], out[block])
        held.update(into[block].data)
        sent.update(out[block].data)
    return held.intdigest(), sent.intdigest()


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

    def note(self, sent: Mapping[str, int]) -> None:
        """Take checksums of its tensors from a receiver that has just read them as it copied them."""
        self._checksums |= sent

    def checksums(self) -> Mapping[str, int]:
        """By name, of what was sent."""
        for name, tensor in self._tensors.items():
            if name not in self._checksums:
                self._checksums[name] = checksum(tensor)
        return self._checksums


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
