"""Whether weights can be copied over others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from hooktrainer.errors import SyncError, did_you_mean
from hooktrainer.weight_sync.checksums import checksum

if TYPE_CHECKING:
    from torch import Tensor


def check_fit(weights: Mapping[str, Tensor], targets: Mapping[str, Tensor]) -> None:
    """Raise `SyncError`, with every fault, unless weights can be copied into the targets.

    Floating-point numbers may be cast, others may not. Names that the targets tie together must have equal weights.
    """
    if targets and weights and not weights.keys() & targets.keys():
        raise SyncError(
            f"weights do not fit the engine: they matched 0 of {len(targets)} of its tensors; they are called "
            f"{_some(weights)}, the engine's {_some(targets)}"
        )
    faults = [f"'{name}' is missing" for name in targets if name not in weights]
    faults += [
        f"'{name}' is unknown to the engine.{did_you_mean(name, targets)}" for name in weights if name not in targets
    ]
    for name, target in targets.items():
        if name in weights:
            faults += misfits(name, weights[name], target)
    if faults or (faults := list(_torn_ties(weights, targets))):
        raise SyncError(f"weights do not fit the engine: {'; '.join(faults)}")


def misfits(name: str, weight: Tensor, target: Tensor) -> Iterator[str]:
    """What keeps one tensor from being copied into another."""
    if weight.shape != target.shape:
        yield f"'{name}' has shape {tuple(weight.shape)}, the engine's {tuple(target.shape)}"
    castable = weight.is_floating_point() and target.is_floating_point()
    if weight.dtype != target.dtype and not castable:
        yield f"'{name}' is {weight.dtype}, the engine's {target.dtype}"
    if weight.numel() and _memory(weight) == _memory(target) != 0:
        yield f"'{name}' shares memory with the engine's own copy"


def place_of(tensor: Tensor) -> tuple[object, ...]:
    """What two names of one tensor have in common; a tensor without memory is only like itself."""
    start = tensor.data_ptr()  # 0 on the device `meta`
    return (start, tensor.shape, tensor.stride()) if start and tensor.numel() else (id(tensor),)


def _memory(tensor: Tensor) -> int:
    """Where its storage begins; 0 on the device `meta`."""
    return tensor.untyped_storage().data_ptr()


def _torn_ties(weights: Mapping[str, Tensor], targets: Mapping[str, Tensor]) -> Iterator[str]:
    names: dict[tuple[object, ...], str] = {}
    for name, target in targets.items():
        first = names.setdefault(place_of(target), name)
        if first == name:
            continue
        one, other = weights[first], weights[name]
        if place_of(one) != place_of(other) and not _same(one, other):
            yield f"'{first}' and '{name}' are one tensor in the engine, but differ"


def _same(one: Tensor, other: Tensor) -> bool:
    """Bit for bit, so that NaN is NaN."""
    return one.dtype == other.dtype and checksum(one) == checksum(other)


def _some(names: Mapping[str, object]) -> str:
    shown = ", ".join(f"'{name}'" for name in list(names)[:3])
    return f"{shown}, ..." if len(names) > 3 else shown
