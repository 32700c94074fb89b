"""Transfer of device values to the host: one transfer for each device, not one for each key."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING

from hooktrainer.errors import MetricError

if TYPE_CHECKING:
    from torch import Tensor


def to_host(values: Mapping[str, object]) -> dict[str, object]:
    """Return the values with every torch tensor, alone or in a list, as a Python float.

    No tensor and no autograd graph is kept. Raises `MetricError` with key and shape if a tensor does not hold exactly
    one real number.
    """
    torch = sys.modules.get("torch")  # a caller that holds a tensor has imported torch; others must not pay for it
    if torch is None:
        return dict(values)
    others = ((key, value) for key, value in values.items() if type(value) is not float)
    found = [(key, item) for key, value in others for item in _items(value) if isinstance(item, torch.Tensor)]
    if not found:
        return dict(values)
    for key, tensor in found:
        if tensor.numel() != 1 or tensor.is_complex():
            raise MetricError(
                f"metric {key!r}: expected one real number, found a tensor of shape {tuple(tensor.shape)} and type "
                f"{tensor.dtype}. Reduce it first, or pass a Metric (Mean, Max, Counts, ...)."
            )
    numbers = iter(_transfer(torch, [tensor for _, tensor in found]))
    return {key: _replaced(value, torch.Tensor, numbers) for key, value in values.items()}


def joined(*sources: Mapping[str, object]) -> Mapping[str, object]:
    """Join metrics of several sources into one deeply read-only mapping. Raises `MetricError` if two share a name."""
    together: dict[str, object] = {}
    for source in sources:
        if twice := together.keys() & source.keys():
            raise MetricError(f"two of learner, engine, buffer and loop report {', '.join(sorted(twice))}; rename one")
        together.update(source)
    return MappingProxyType({key: _frozen(value) for key, value in together.items()})


def _frozen(value: object) -> object:
    if isinstance(value, Mapping):
        return MappingProxyType({key: _frozen(item) for key, item in value.items()})
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def _items(value: object) -> Sequence[object]:
    return value if isinstance(value, (list, tuple)) else (value,)


def _replaced(value: object, kind: type, numbers: Iterator[float]) -> object:
    if isinstance(value, (list, tuple)):
        return [next(numbers) if isinstance(item, kind) else item for item in value]
    return next(numbers) if isinstance(value, kind) else value


def _transfer(torch: ModuleType, tensors: Sequence[Tensor]) -> list[float]:
    """Convert one-element tensors to floats, in their order."""
    numbers = [math.nan] * len(tensors)
    for device in {tensor.device for tensor in tensors}:
        places = [place for place, tensor in enumerate(tensors) if tensor.device == device]
        # The widest type, which every dtype converts to; Apple GPUs have no float64.
        dtype = torch.float32 if device.type == "mps" else torch.float64
        stacked = torch.stack([tensors[place].detach().reshape(()).to(dtype) for place in places])
        for place, value in zip(places, stacked.tolist(), strict=True):
            numbers[place] = value
    return numbers
