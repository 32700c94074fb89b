"""Whether weights can be copied over others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from hooktrainer.errors import SyncError


def check_fit(weights: Mapping[str, Tensor], targets: Mapping[str, Tensor]) -> None:
    """Raise `SyncError`, with every fault, unless weights can be copied into the targets.

    Floating-point numbers may be cast, others may not. Names that the targets tie together must have equal weights.
    """
    faults = [f"'{name}' is missing" for name in targets if name not in weights]
    faults += [f"'{name}' is unknown to the engine" for name in weights if name not in targets]
    for name, target in targets.items():
        if name in weights:
            faults += _misfits(name, weights[name], target)
    if faults or (faults := list(_torn_ties(weights, targets))):
        raise SyncError(f"weights do not fit the engine: {'; '.join(faults)}")


def _misfits(name: str, weight: Tensor, target: Tensor) -> Iterator[str]:
    if weight.shape != target.shape:
        yield f"'{name}' has shape {tuple(weight.shape)}, the engine's {tuple(target.shape)}"
    castable = weight.is_floating_point() and target.is_floating_point()
    if weight.dtype != target.dtype and not castable:
        yield f"'{name}' is {weight.dtype}, the engine's {target.dtype}"
    if weight.numel() and weight.untyped_storage().data_ptr() == target.untyped_storage().data_ptr():
        yield f"'{name}' shares memory with the engine's own copy"


def _torn_ties(weights: Mapping[str, Tensor], targets: Mapping[str, Tensor]) -> Iterator[str]:
    names: dict[tuple[object, ...], str] = {}
    for name, target in targets.items():
        first = names.setdefault(place_of(target), name)
        if place_of(weights[first]) != place_of(weights[name]) and not torch.equal(weights[first], weights[name]):
            yield f"'{first}' and '{name}' are one tensor in the engine, but differ"


def place_of(tensor: Tensor) -> tuple[object, ...]:
    """What two names of one tensor have in common; a tensor without memory is only like itself."""
    return (tensor.data_ptr(), tensor.shape, tensor.stride()) if tensor.numel() else (id(tensor),)
