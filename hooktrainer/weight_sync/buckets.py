"""What goes to an engine, cut into buckets: cast once and here, tied tensors once, memory bounded by the bucket."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor

from hooktrainer.weight_sync.checksums import Bucket
from hooktrainer.weight_sync.compatibility import check_fit, place_of

if TYPE_CHECKING:
    from hooktrainer.ports import Weights

_CAST_ELEMENTS: Final = 1 << 16
"""Elements whose casts are compared at once, in float64."""


class BucketedWeights:
    """All weights of one version for one engine."""

    def __init__(self, weights: Weights, spec: Weights | None, bucket_bytes: int) -> None:
        """Raise `SyncError`, with every fault, if weights do not fit what the engine takes.

        Without a `spec`, weights go as they are, also under every name that they are tied by.
        """
        if spec is not None:
            check_fit(weights, spec)
        self._weights = weights
        self._spec = spec
        self._names = list(weights) if spec is None else _untied(spec)
        self._bucket_bytes = bucket_bytes
        self.num_bytes = 0
        """Sent so far, each tensor once."""
        self.num_buckets = 0
        self.num_cast = 0
        """Tensors that had to be cast."""
        self.cast_error = 0.0
        """Largest error of a cast."""
        self.sources: set[object] = set()
        """Where what was sent lies on the sender's side."""

    def __len__(self) -> int:
        return len(self._names)

    def buckets(self) -> Iterator[Bucket]:
        """The buckets, one in memory at a time; a tensor above the limit goes alone."""
        names: list[str] = []
        size = 0
        for name in self._names:
            nbytes = self._nbytes(name)
            if names and size + nbytes > self._bucket_bytes:
                yield self._packed(names)
                names, size = [], 0
            names.append(name)
            size += nbytes
        if names:
            yield self._packed(names)

    def _nbytes(self, name: str) -> int:
        return (self._weights if self._spec is None else self._spec)[name].nbytes

    @torch.no_grad()  # not on the generator, whose wrapper would keep each bucket until the next one is made
    def _packed(self, names: Sequence[str]) -> Bucket:
        tensors = {name: self._ready(name, self._weights[name].detach()) for name in names}
        self.num_buckets += 1
        self.num_bytes += sum({place_of(tensor): tensor.nbytes for tensor in tensors.values()}.values())
        return Bucket(tensors)

    def _ready(self, name: str, tensor: Tensor) -> Tensor:
        """As the engine takes it; copied only where it has to be."""
        self.sources.add(place_of(tensor))
        dtype = tensor.dtype if self._spec is None else self._spec[name].dtype
        if tensor.dtype == dtype and tensor.device.type == "cpu" and tensor.is_contiguous():
            return tensor
        ready = torch.empty(tensor.shape, dtype=dtype).copy_(tensor)
        if tensor.dtype != dtype:
            self.num_cast += 1
            self.cast_error = max(self.cast_error, _largest_error(tensor, ready))
        return ready


def _untied(spec: Mapping[str, Tensor]) -> list[str]:
    """The first name of every tensor."""
    first: dict[object, str] = {}
    for name, tensor in spec.items():
        first.setdefault(place_of(tensor), name)
    return list(first.values())


def _largest_error(exact: Tensor, cast: Tensor) -> float:
    if not exact.numel():
        return 0.0
    exact, cast = torch.atleast_1d(exact, cast)  # type: ignore[no-untyped-call]
    rows = max(1, _CAST_ELEMENTS // max(1, exact[0].numel()))
    errors = [
        (one.to(cast.device).double() - other.double()).abs().max()
        for one, other in zip(torch.split(exact, rows), torch.split(cast, rows), strict=True)
    ]
    return float(torch.stack(errors).nan_to_num(0.0, posinf=torch.inf).max())  # NaN, and inf - inf, are cast exactly
