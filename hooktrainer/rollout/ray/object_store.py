"""Weights in the object store of Ray: each bucket is written once, and read by every actor without a copy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import ray

from hooktrainer.weight_sync.checksums import as_bytes

if TYPE_CHECKING:
    from torch import Tensor

    from hooktrainer.ports import Weights
    from hooktrainer.rollout.ray.cluster import Cluster


class ObjectStore:
    """Keeps the buckets of both sets, so that an actor that starts later can copy them as well."""

    def __init__(self, sets: Sequence[Mapping[str, Tensor]], cluster: Cluster) -> None:
        self._sets = sets
        self._cluster = cluster
        self._buckets: Final[list[list[Any]]] = [[] for _ in sets]

    def open(self) -> None:
        """Connect to Ray, and store both sets."""
        self._cluster.connect()
        for index, tensors in enumerate(self._sets):
            self._buckets[index] = [_put(tensors)]

    def add(self, index: int, weights: Weights) -> object:
        """Store a bucket of a set, and return a reference to it."""
        reference = _put(weights)
        self._buckets[index].append(reference)
        return reference

    def discard(self, index: int) -> None:
        """Remove the buckets of a set that is staged anew."""
        self._buckets[index] = []

    def buckets(self) -> Sequence[tuple[int, object]]:
        """Return the set and the reference of each bucket, in the order in which a new actor copies them."""
        return [(index, reference) for index, references in enumerate(self._buckets) for reference in references]

    def close(self) -> None:
        """Remove all buckets, and disconnect from Ray."""
        for index in range(len(self._buckets)):
            self.discard(index)
        self._cluster.disconnect()


def _put(weights: Weights) -> object:
    """Store the bytes of tensors, as arrays: each reader would copy tensors."""
    return ray.put({name: as_bytes(weights[name]) for name in weights})
