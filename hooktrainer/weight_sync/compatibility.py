"""Checks that the learner's weights can be copied into the tensors of an engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from hooktrainer.errors import SyncError, did_you_mean

if TYPE_CHECKING:
    from torch import Tensor


def check_compatible(weights: Mapping[str, Tensor], targets: Mapping[str, Tensor]) -> None:
    """Raise `SyncError`, listing every fault, unless the weights can be copied into the targets.

    Only names, shapes, dtypes and memory addresses are compared, so the tensors may be on the device `meta`.
    Floating-point tensors may be cast, others may not.
    """
    if targets and weights and not weights.keys() & targets.keys():
        raise SyncError(
            f"weights do not fit the engine: they matched 0 of {len(targets)} of its tensors; the learner's names are "
            f"{_some(weights)}, the engine's are {_some(targets)}"
        )
    faults = [f"'{name}' is missing" for name in targets if name not in weights]
    faults += [
        f"'{name}' is unknown to the engine.{did_you_mean(name, targets)}" for name in weights if name not in targets
    ]
    for name, target in targets.items():
        if name in weights:
            faults += mismatches(name, weights[name], target)
    if faults:
        raise SyncError(f"weights do not fit the engine: {'; '.join(faults)}")


def mismatches(name: str, weight: Tensor, target: Tensor) -> Iterator[str]:
    """Yield every reason why one tensor cannot be copied into another."""
    if weight.shape != target.shape:
        yield f"'{name}' has shape {tuple(weight.shape)}, the engine's {tuple(target.shape)}"
    castable = weight.is_floating_point() and target.is_floating_point()
    if weight.dtype != target.dtype and not castable:
        yield f"'{name}' is {weight.dtype}, the engine's {target.dtype}"
    if weight.numel() and _storage(weight) == _storage(target) != 0:
        yield f"'{name}' shares memory with the engine's own copy"


def tie_key(tensor: Tensor) -> tuple[object, ...]:
    """Return a key that two names share if they are tied, that is, if they name one tensor.

    A tensor without memory is only tied to itself.
    """
    start = tensor.data_ptr()  # 0 on the device `meta`
    return (start, tensor.shape, tensor.stride()) if start and tensor.numel() else (id(tensor),)


def tied_names(weights: Mapping[str, Tensor]) -> list[list[str]]:
    """Return the names of each tensor, in the order of their first names."""
    names: dict[tuple[object, ...], list[str]] = {}
    for name, tensor in weights.items():
        names.setdefault(tie_key(tensor), []).append(name)
    return list(names.values())


def _storage(tensor: Tensor) -> int:
    """Return the address of the tensor's storage, 0 on the device `meta`."""
    return tensor.untyped_storage().data_ptr()


def _some(names: Mapping[str, object]) -> str:
    shown = ", ".join(f"'{name}'" for name in list(names)[:3])
    return f"{shown}, ..." if len(names) > 3 else shown
