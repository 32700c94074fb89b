"""Weights handed over on one host, to engines whose memory this process can write: their own, or shared memory."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from hooktrainer.errors import SyncError
from hooktrainer.metrics import Max, Sum
from hooktrainer.weight_sync.buckets import BucketedWeights
from hooktrainer.weight_sync.checksums import Bucket, checksum
from hooktrainer.weight_sync.compatibility import place_of
from hooktrainer.weight_sync.protocol import SyncAttempt, VerifiedTransport, who

if TYPE_CHECKING:
    from hooktrainer.ports import Weights

_LOG: Final = logging.getLogger("hooktrainer")


class SameHostTransport(VerifiedTransport):
    """Each engine copies bucket after bucket, once, to where it will use it."""

    def __init__(self) -> None:
        self._sent: Mapping[str, int] = {}
        """Checksums of what was last published."""
        self._trained: Mapping[str, int] = {}
        """Checksums, as of then, of what the optimizer changes and nobody is sent."""
        self._next: tuple[Mapping[str, int], Mapping[str, int]] = ({}, {})
        self._casts_said = False
        self._sameness_said = False

    def _stage(
        self, attempt: SyncAttempt, weights: Weights, trained: Weights | None, bucket_bytes: int
    ) -> Mapping[str, object]:
        sendings = []
        sent: dict[str, int] = {}
        for place, engine in enumerate(attempt.engines):
            shipment = BucketedWeights(weights, engine.spec(), bucket_bytes)
            for bucket in shipment.buckets():
                sent |= _deliver(bucket, attempt, place)
                del bucket  # before the next one is made
            sendings.append(shipment)
        sources = {source for shipment in sendings for source in shipment.sources}
        self._next = (sent, dict(_unsent(sources, trained or {})))
        if sent == self._sent:
            self._nothing_new(attempt.version, cast=any(shipment.num_cast for shipment in sendings))
        return self._report(sendings)

    def _published(self) -> None:
        self._sent, self._trained = self._next

    def _nothing_new(self, version: int, *, cast: bool) -> None:
        """Refuse to call it a sync if training moved something all the same."""
        sent, trained = self._next
        moved = [name for name, value in trained.items() if self._trained.get(name, value) != value]
        if moved and not cast:
            raise SyncError(
                f"training moved {len(moved)} of {len(trained)} tensors that are not sent themselves, such as "
                f"'{moved[0]}', but all {len(sent)} weights for version {version} are those that engines already have. "
                "`learner.weights()` has to give the base with adapters merged into it"
            )
        if not self._sameness_said:
            text = ", since what training moved is lost in the cast to the engine's dtype" if moved else ""
            _LOG.warning("version %d brings engines nothing new: all weights are as they were%s", version, text)
            self._sameness_said = True

    def _report(self, sendings: list[BucketedWeights]) -> Mapping[str, object]:
        for place, shipment in enumerate(sendings):
            if shipment.num_cast and not self._casts_said:
                _LOG.warning(
                    "%d of %d tensors are cast to the dtype of engine %d; largest error %g",
                    shipment.num_cast,
                    len(shipment),
                    place,
                    shipment.cast_error,
                )
                self._casts_said = True
        metrics: dict[str, object] = {
            "weight_sync/bytes": Sum(sum(shipment.num_bytes for shipment in sendings)),
            "weight_sync/buckets": Sum(sum(shipment.num_buckets for shipment in sendings)),
        }
        if any(shipment.num_cast for shipment in sendings):
            metrics["weight_sync/cast_error"] = Max(max(shipment.cast_error for shipment in sendings))
        return metrics


def _deliver(bucket: Bucket, attempt: SyncAttempt, place: int) -> Mapping[str, int]:
    """Stage one bucket, and compare what the engine then holds with what was sent."""
    engine = attempt.engines[place]
    held = engine.stage(bucket, attempt.version)
    if place not in attempt.staged:
        attempt.staged.append(place)
    sent = bucket.checksums()
    if faults := list(_differences(sent, held)):
        raise SyncError(f"{who(place, engine)} does not hold what it was sent: {'; '.join(faults)}")
    return sent


def _differences(sent: Mapping[str, int], held: object) -> Iterator[str]:
    if not isinstance(held, Mapping):
        yield f"`stage` gave {type(held).__name__} in place of a checksum by name"
        return
    for name, expected in sent.items():
        if name not in held:
            yield f"'{name}' was not acknowledged"
        elif held[name] != expected:
            yield f"'{name}' has the checksum {held[name]:#018x}, not {expected:#018x}"


def _unsent(sources: set[object], trained: Weights) -> Iterator[tuple[str, int]]:
    """Checksums of trained tensors that were not sent; those that were tell by themselves if they moved."""
    return ((name, checksum(tensor)) for name, tensor in trained.items() if place_of(tensor) not in sources)
