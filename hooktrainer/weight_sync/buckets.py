"""Buckets of weights for engines: each tensor is read once and cast once, and the bucket size bounds the memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

import torch
from torch import Tensor

from hooktrainer.errors import SyncError
from hooktrainer.ports import WeightSource
from hooktrainer.weight_sync.checksums import checksum
from hooktrainer.weight_sync.compatibility import check_compatible, tie_key, tied_names

if TYPE_CHECKING:
    from hooktrainer.ports import Weights

_CAST_ELEMENTS: Final = 1 << 16
"""Elements whose casts are compared at once, in float64."""
_Casts: TypeAlias = dict[torch.dtype, tuple[Tensor, float]]
"""A tensor in each dtype that an engine takes, with the largest error of the cast."""


class Bucket(Mapping[str, Tensor]):
    """Tensors that are sent to an engine together, with the sender's checksums of them.

    To an engine it is a mapping of contiguous host tensors in the engine's dtypes. The engine copies them.
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

    def record_checksums(self, sent: Mapping[str, int]) -> None:
        """Store checksums that the receiver computed from the sender's memory while it copied."""
        self._checksums |= sent

    def checksums(self) -> Mapping[str, int]:
        """Return the checksum of every tensor that was sent, by name."""
        for name, tensor in self._tensors.items():
            if name not in self._checksums:
                self._checksums[name] = checksum(tensor)
        return self._checksums


class Receiver:
    """The tensors that one engine takes, and counts of the data packed for it."""

    def __init__(self, described: Weights, spec: Weights | None) -> None:
        """Without a `spec`, the engine takes all tensors as they are, under all their names."""
        self._dtypes = {name: tensor.dtype for name, tensor in (described if spec is None else spec).items()}
        groups = [[name] for name in described] if spec is None else tied_names(spec)
        self.sent_as: Final = {name: group[0] for group in groups for name in group}
        """The name under which the tensor of a name is sent: the first of those that the engine ties."""
        self.num_tensors: Final = len(groups)
        self.num_bytes = 0
        """Bytes packed so far; a tensor counts once."""
        self.num_buckets = 0
        self.num_cast = 0
        """Tensors whose dtype was changed."""
        self.cast_error = 0.0
        """Largest error of a cast."""

    def dtypes(self, names: Sequence[str]) -> set[torch.dtype]:
        """Return the dtypes in which the engine takes a tensor with these names."""
        return {self._dtypes[name] for name in names if self.sent_as[name] == name}

    def pack(self, names: Sequence[str], tensor: Tensor, casts: _Casts) -> dict[str, Tensor]:
        """Return the tensor in the engine's dtypes, under the names that the engine expects."""
        packed, errors = dict[str, Tensor](), list[float]()
        for name in names:
            if self.sent_as[name] == name:
                packed[name], error = casts[self._dtypes[name]]
                if packed[name].dtype != tensor.dtype:
                    errors.append(error)
        self.num_cast += bool(errors)
        self.cast_error = max([self.cast_error, *errors])
        return packed

    def bucket(self, tensors: Mapping[str, Tensor]) -> Bucket:
        """Make a bucket and count it, unless it is empty."""
        self.num_buckets += bool(tensors)
        self.num_bytes += sum({tie_key(tensor): tensor.nbytes for tensor in tensors.values()}.values())
        return Bucket(tensors)


class BucketedWeights:
    """The weights of one version, cut into buckets for all engines of a sync."""

    def __init__(self, weights: Weights, specs: Sequence[Weights | None], bucket_bytes: int) -> None:
        """Raise `SyncError`, listing every fault, if the weights do not fit an engine. This reads no tensor.

        A `WeightSource` is read bucket by bucket. Any other mapping is read here, each tensor once.
        """
        self._read, described = _open(weights)
        for spec in specs:
            if spec is not None:
                check_compatible(described, spec)
        order = next((spec for spec in specs if spec is not None), described)
        self._groups = tied_names({name: described[name] for name in order})
        self._described = described
        self._bucket_bytes = bucket_bytes
        self.receivers: Final = [Receiver(described, spec) for spec in specs]
        """One for each engine, in order."""
        self.sources: set[object] = set()
        """Tie keys of the tensors that were read."""
        self._ties = _SplitTies(self._groups, self.receivers)

    def buckets(self) -> Iterator[list[Bucket]]:
        """Yield a list of buckets, one for each engine, possibly empty; the next list is made afterwards.

        A tensor above the limit is packed alone. Raises `SyncError` if an engine ties tensors that differ.
        """
        groups: list[list[str]] = []
        size = 0
        for names in self._groups:
            nbytes = self._nbytes(names)
            if groups and size + nbytes > self._bucket_bytes:
                yield self._pack(groups)
                groups, size = [], 0
            groups.append(names)
            size += nbytes
        if groups:
            yield self._pack(groups)

    def _dtypes(self, names: Sequence[str]) -> set[torch.dtype]:
        return {dtype for receiver in self.receivers for dtype in receiver.dtypes(names)}

    def _nbytes(self, names: Sequence[str]) -> int:
        return self._described[names[0]].numel() * sum(dtype.itemsize for dtype in self._dtypes(names))

    @torch.no_grad()  # not on the generator: its wrapper would keep each bucket alive until the next one is made
    def _pack(self, groups: Sequence[Sequence[str]]) -> list[Bucket]:
        contents: list[dict[str, Tensor]] = [{} for _ in self.receivers]
        for names in groups:
            tensor = self._read(names[0]).detach()
            self.sources.add(tie_key(tensor))
            self._ties.check(names[0], tensor)
            casts = {dtype: _cast(tensor, dtype) for dtype in self._dtypes(names)}
            for receiver, content in zip(self.receivers, contents, strict=True):
                content.update(receiver.pack(names, tensor, casts))
        return [receiver.bucket(content) for receiver, content in zip(self.receivers, contents, strict=True)]


class _SplitTies:
    """Names that an engine ties and the learner does not: their tensors must be equal."""

    def __init__(self, groups: Sequence[Sequence[str]], receivers: Sequence[Receiver]) -> None:
        first = {name: group[0] for group in groups for name in group}
        self._pairs = {
            (first[sent_as], first[name]): (sent_as, name)
            for receiver in receivers
            for name, sent_as in receiver.sent_as.items()
            if first[sent_as] != first[name]
        }
        self._compared = {name for pair in self._pairs for name in pair}
        self._seen: dict[str, tuple[torch.dtype, int]] = {}

    def check(self, name: str, tensor: Tensor) -> None:
        """Raise `SyncError` if this tensor differs from one that was read before and that an engine ties to it."""
        if name not in self._compared:
            return
        self._seen[name] = tensor.dtype, checksum(tensor)  # bit for bit, so that NaN equals NaN
        for (one, other), (sent_as, tied) in self._pairs.items():
            if {one, other} <= self._seen.keys() and self._seen[one] != self._seen[other]:
                raise SyncError(
                    f"weights do not fit the engine: '{sent_as}' and '{tied}' are one tensor in the engine, but differ"
                )


def _open(weights: Weights) -> tuple[Callable[[str], Tensor], Weights]:
    """Return a function that reads a tensor, and a description of all tensors."""
    if isinstance(weights, WeightSource):
        return weights.__getitem__, weights.spec()
    tensors = {name: weights[name] for name in weights}
    return tensors.__getitem__, tensors


def _cast(tensor: Tensor, dtype: torch.dtype) -> tuple[Tensor, float]:
    """Return a contiguous host tensor of this dtype, and the largest error of the cast; copy only if necessary."""
    if tensor.dtype == dtype and tensor.device.type == "cpu" and tensor.is_contiguous():
        return tensor, 0.0
    ready = torch.empty(tensor.shape, dtype=dtype, pin_memory=tensor.is_cuda).copy_(tensor)
    return ready, 0.0 if tensor.dtype == dtype else _largest_error(tensor, ready)


def _largest_error(exact: Tensor, cast: Tensor) -> float:
    if not exact.numel():
        return 0.0
    exact, cast = torch.atleast_1d(exact, cast)  # type: ignore[no-untyped-call]
    rows = max(1, _CAST_ELEMENTS // max(1, exact[0].numel()))
    errors = [
        (one.to(cast.device).double() - other.double()).abs().max()
        for one, other in zip(torch.split(exact, rows), torch.split(cast, rows), strict=True)
    ]
    return float(torch.stack(errors).nan_to_num(0.0, posinf=torch.inf).max())  # casts of NaN and infinity are exact
