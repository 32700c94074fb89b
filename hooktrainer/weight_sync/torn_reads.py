"""Detection of torn reads: a group that was sampled from a mix of two versions ends the run.

A set of weights is written from its first tensor to its last. A reader of a set that is being written, or of the wrong
memory, finds a first and a last tensor that were never published together. Every group carries fingerprints of the
weights that it was sampled from, and the trainer compares them with those of the published versions.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Final

import attrs

from hooktrainer.errors import SyncError
from hooktrainer.weight_sync.checksums import checksum

if TYPE_CHECKING:
    from torch import Tensor

END_BYTES: Final = 512 * 1024
"""Bytes at the outer end of a tensor that a fingerprint covers."""
_MAX_VERSIONS: Final = 1000
"""Versions whose fingerprints are kept; an answer spans a few."""


@attrs.frozen
class Fingerprint:
    """A version, and checksums of the outer ends of its first and its last tensor."""

    version: int
    first: int
    last: int

    @classmethod
    def of(cls, version: int, ends: tuple[Tensor, Tensor] | None) -> Fingerprint:
        """Compute a fingerprint from the tensors that `end_tensors` returned."""
        if ends is None:
            return cls(version, 0, 0)
        first, last = ends
        front, back = (max(1, END_BYTES // tensor.element_size()) for tensor in ends)
        return cls(version, checksum(first.reshape(-1)[:front]), checksum(last.reshape(-1)[-back:]))


def end_tensors(weights: Mapping[str, Tensor]) -> tuple[Tensor, Tensor] | None:
    """Return the first and the last tensor that have elements, None if there are none."""
    tensors = [tensor for tensor in weights.values() if tensor.numel()]
    return (tensors[0], tensors[-1]) if tensors else None


class TornReadDetector:
    """Compares fingerprints of sampled groups with those of the published versions. Thread-safe."""

    def __init__(self) -> None:
        self._published: dict[int, Fingerprint] = {}
        self._lock = threading.Lock()

    def publish(self, fingerprint: Fingerprint) -> None:
        """Store the fingerprint of a version before engines use it."""
        with self._lock:
            self._published[fingerprint.version] = fingerprint
            if len(self._published) > _MAX_VERSIONS:
                del self._published[next(iter(self._published))]

    def check(self, number: int, fingerprints: Collection[Fingerprint]) -> None:
        """Raise `SyncError` if group `number` was sampled from weights that were never published."""
        with self._lock:
            pairs = [(found, self._published.get(found.version)) for found in fingerprints]
        for found, published in pairs:
            if found != published:
                expected = "none" if published is None else f"{published.first:#018x} and {published.last:#018x}"
                raise SyncError(
                    f"group {number} was sampled from torn weights: of version {found.version} the first and the last "
                    f"tensor had the checksums {found.first:#018x} and {found.last:#018x}, published were {expected}"
                )
