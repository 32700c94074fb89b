"""Transport to engines whose memory this process can write: its own memory, or shared memory."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from hooktrainer.errors import SyncError
from hooktrainer.metrics import Max, Sum
from hooktrainer.weight_sync.buckets import Bucket, BucketedWeights, Receiver
from hooktrainer.weight_sync.checksums import checksum
from hooktrainer.weight_sync.compatibility import tie_key
from hooktrainer.weight_sync.protocol import SyncAttempt, VerifiedTransport, engine_name

if TYPE_CHECKING:
    from hooktrainer.ports import Weights

_LOG: Final = logging.getLogger("hooktrainer")


class SameHostTransport(VerifiedTransport):
    """Reads each tensor once; every engine copies each bucket once, into the memory that it will sample from."""

    def __init__(self) -> None:
        self._sent: Mapping[str, int] = {}
        """Checksums of the weights that were published last."""
        self._trained: Mapping[str, int] = {}
        """Checksums, at that time, of the tensors that the optimizer changes and that are not sent."""
        self._next: tuple[Mapping[str, int], Mapping[str, int]] = ({}, {})
        self._casts_logged = False
        self._no_change_logged = False

    def _stage(
        self, attempt: SyncAttempt, weights: Weights, trained: Weights | None, bucket_bytes: int
    ) -> Mapping[str, object]:
        bucketed = BucketedWeights(weights, [engine.spec() for engine in attempt.engines], bucket_bytes)
        sent: dict[str, int] = {}
        for buckets in bucketed.buckets():
            for place, bucket in enumerate(buckets):
                if bucket:
                    sent |= _deliver(bucket, attempt, place)
            del bucket, buckets  # free the memory before the next bucket is made
        self._next = (sent, dict(_checksums_of_unsent(bucketed.sources, trained or {})))
        if sent == self._sent:
            cast = any(receiver.num_cast for receiver in bucketed.receivers)
            self._check_no_change(attempt.version, trained or {}, cast=cast)
        return self._report(bucketed.receivers)

    def _published(self, _version: int) -> None:
        self._sent, self._trained = self._next

    def _check_no_change(self, version: int, tensors: Weights, *, cast: bool) -> None:
        """Raise `SyncError` if training changed a tensor although the published weights are unchanged.

        One factor of an adapter may change while the other is still zero, so that their product does not.
        """
        sent, trained = self._next
        moved = [name for name, value in trained.items() if self._trained.get(name, value) != value]
        zero = any(not bool(tensors[name].any()) for name in trained.keys() - set(moved))
        if moved and not cast and not zero:
            raise SyncError(
                f"training changed {len(moved)} of {len(trained)} tensors that are not sent themselves, such as "
                f"'{moved[0]}', but all {len(sent)} weights of version {version} equal those that the engines hold. "
                "`learner.weights()` must return the base weights with the adapters merged into them"
            )
        if not self._no_change_logged:
            reason = ", because the changes are lost in the cast to the engine's dtype" if moved else ""
            _LOG.warning(
                "version %d contains no change: all weights equal those of the previous version%s", version, reason
            )
            self._no_change_logged = True

    def _report(self, receivers: Sequence[Receiver]) -> Mapping[str, object]:
        for place, receiver in enumerate(receivers):
            if receiver.num_cast and not self._casts_logged:
                _LOG.warning(
                    "%d of %d tensors are cast to the dtype of engine %d; largest error %g",
                    receiver.num_cast,
                    receiver.num_tensors,
                    place,
                    receiver.cast_error,
                )
                self._casts_logged = True
        metrics: dict[str, object] = {
            "weight_sync/bytes": Sum(sum(receiver.num_bytes for receiver in receivers)),
            "weight_sync/buckets": Sum(sum(receiver.num_buckets for receiver in receivers)),
        }
        if any(receiver.num_cast for receiver in receivers):
            metrics["weight_sync/cast_error"] = Max(max(receiver.cast_error for receiver in receivers))
        return metrics


def _deliver(bucket: Bucket, attempt: SyncAttempt, place: int) -> Mapping[str, int]:
    """Stage a bucket on one engine, and compare the engine's checksums with those of the source."""
    engine = attempt.engines[place]
    held = engine.stage(bucket, attempt.version)
    if place not in attempt.staged:
        attempt.staged.append(place)
    sent = bucket.checksums()
    if faults := list(_differences(sent, held)):
        raise SyncError(f"{engine_name(place, engine)} does not hold the weights that were sent: {'; '.join(faults)}")
    return sent


def _differences(sent: Mapping[str, int], held: object) -> Iterator[str]:
    if not isinstance(held, Mapping):
        yield f"`stage` returned {type(held).__name__} instead of a mapping from names to checksums"
        return
    for name, expected in sent.items():
        if name not in held:
            yield f"'{name}' was not acknowledged"
        elif held[name] != expected:
            yield f"'{name}' has the checksum {held[name]:#018x}, expected {expected:#018x}"


def _checksums_of_unsent(sources: set[object], trained: Weights) -> Iterator[tuple[str, int]]:
    """Yield the checksums of trained tensors that are not sent; the others are compared by the sent tensors."""
    return ((name, checksum(tensor)) for name, tensor in trained.items() if tie_key(tensor) not in sources)
