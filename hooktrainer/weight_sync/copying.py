"""Copy a bucket into the memory of an engine, with checksums of source and target.

The copy runs in blocks. Both checksums are updated while a block is in the cache.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import xxhash
from numpy.typing import NDArray

from hooktrainer._util.threads import failure_of
from hooktrainer.errors import SyncError
from hooktrainer.weight_sync.buckets import Bucket
from hooktrainer.weight_sync.checksums import as_bytes, checksum

if TYPE_CHECKING:
    from hooktrainer.ports import Weights

_Memory: TypeAlias = tuple[NDArray[np.uint8], NDArray[np.uint8]]
"""Memory of a target and of its source."""
BLOCK_BYTES: Final = 512 * 1024
"""Bytes that are copied at once: few enough that source and target stay in the cache until they are read again."""
_MIN_BYTES_FOR_THREADS: Final = 8 * 2**20


def copy_with_checksums(targets: Weights, weights: Weights, threads: int = 1) -> Mapping[str, int]:
    """Copy weights into targets of the same shapes and dtypes; return checksums of the targets after the copy.

    With several threads, each copies one tensor at a time, largest first. Small buckets are copied by one thread.
    """
    copied: dict[str, int] = {}
    memory: dict[str, _Memory] = {}
    for name in weights:
        target, source = targets[name], weights[name]
        if target.is_cpu and target.is_contiguous():
            memory[name] = as_bytes(target), as_bytes(source)
        else:
            target.copy_(source)
            copied[name] = checksum(target)
    pairs = _copy_all(memory, threads)
    if isinstance(weights, Bucket):
        weights.record_checksums({name: sent for name, (_, sent) in pairs.items()})
    return copied | {name: arrived for name, (arrived, _) in pairs.items()}


def _copy_all(memory: Mapping[str, _Memory], threads: int) -> Mapping[str, tuple[int, int]]:
    """Copy, and return the checksums of target and source."""
    if threads == 1 or len(memory) == 1 or sum(len(target) for target, _ in memory.values()) < _MIN_BYTES_FOR_THREADS:
        return {name: _copy(pair) for name, pair in memory.items()}
    remaining = iter(sorted(memory, key=lambda name: -len(memory[name][0])))

    def work() -> list[tuple[str, tuple[int, int]]]:
        return [(name, _copy(memory[name])) for name in remaining]

    def work_of_thread() -> list[tuple[str, tuple[int, int]]]:
        try:
            return work()
        except BaseException as error:  # noqa: BLE001 (another one is raised)
            failure = failure_of(error, SyncError)
            raise failure from failure.__cause__

    with ThreadPoolExecutor(threads - 1, thread_name_prefix="weight_sync") as pool:
        others = [pool.submit(work_of_thread) for _ in range(threads - 1)]
        return dict(itertools.chain(work(), *(other.result() for other in others)))


def _copy(pair: _Memory) -> tuple[int, int]:
    target, source = pair
    arrived, sent = xxhash.xxh3_64(), xxhash.xxh3_64()
    for start in range(0, len(target), BLOCK_BYTES):
        block = slice(start, start + BLOCK_BYTES)
        np.copyto(target[block], source[block])
        arrived.update(target[block].data)
        sent.update(source[block].data)
    return arrived.intdigest(), sent.intdigest()
