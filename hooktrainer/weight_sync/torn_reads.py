"""A detector of torn weights: who has sampled says from which bytes, and the trainer's side compares.

A set is written from its first tensor to its last. Whoever reads it while that goes on, or has mapped other memory than
is believed, finds two ends that were never published together.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Final

import attrs

from hooktrainer.errors import SyncError
from hooktrainer.weight_sync.checksums import BLOCK_BYTES, checksum

if TYPE_CHECKING:
    from torch import Tensor

_KEPT: Final = 1000
"""Versions that an answer can be told to be from; one that goes on over syncs spans a few."""


@attrs.frozen
class Fingerprint:
    """A version, and checksums of its first and its last tensor; of large ones, of one block at the outer end."""

    version: int
    first: int
    last: int

    @classmethod
    def of(cls, version: int, ends: tuple[Tensor, Tensor] | None) -> Fingerprint:
        """From the bytes of `ends_of` as they are now."""
        if ends is None:
            return cls(version, 0, 0)
        first, last = ends
        front, back = (max(1, BLOCK_BYTES // tensor.element_size()) for tensor in ends)
        return cls(version, checksum(first.reshape(-1)[:front]), checksum(last.reshape(-1)[-back:]))


def ends_of(weights: Mapping[str, Tensor]) -> tuple[Tensor, Tensor] | None:
    """The first and the last tensor that hold anything, if one does."""
    tensors = [tensor for tensor in weights.values() if tensor.numel()]
    return (tensors[0], tensors[-1]) if tensors else None


class TornReadDetector:
    """Knows the echo of every version that was in use lately."""

    def __init__(self) -> None:
        self._known: dict[int, Fingerprint] = {}
        self._lock = threading.Lock()

    def publish(self, fingerprint: Fingerprint) -> None:
        """This version comes into use."""
        with self._lock:
            self._known[fingerprint.version] = fingerprint
            if len(self._known) > _KEPT:
                del self._known[next(iter(self._known))]

    def check(self, number: int, fingerprints: Collection[Fingerprint]) -> None:
        """Raise `SyncError` unless a group was sampled from what was published."""
        with self._lock:
            torn = [
                (fingerprint, self._known.get(fingerprint.version))
                for fingerprint in fingerprints
                if self._known.get(fingerprint.version) != fingerprint
            ]
        for found, known in torn:
            raise SyncError(
                f"group {number} was sampled from torn weights: of version {found.version} the first and the last "
                f"tensor had the checksums {found.first:#018x} and {found.last:#018x}, published were "
                + ("none" if known is None else f"{known.first:#018x} and {known.last:#018x}")
            )
