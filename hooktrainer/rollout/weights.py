"""An engine's own copy of the published weights, in two buffers.

One buffer is in use, the other takes what is staged; a flip swaps them. A reader keeps the buffer that it began with:
a flip never waits for it, only the stage after that does, if the reader is still there by then.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import attrs
import torch
from torch import Tensor, nn

from hooktrainer.errors import SyncError
from hooktrainer.models.policy import full_state

logger = logging.getLogger(__name__)


@attrs.define(eq=False)
class _Buffer:
    module: nn.Module
    version: int = -1
    readers: int = 0


class DoubleBuffer:
    """Two modules, of which readers see the one in use; the loop's thread stages and flips."""

    def __init__(self, policy: Callable[[], nn.Module]) -> None:
        self._used, self._spare = (_Buffer(policy().eval().requires_grad_(requires_grad=False)) for _ in range(2))
        if _memory(full_state(self._used.module)) & _memory(full_state(self._spare.module)):
            raise ValueError("`policy` has to make a new module at each call; two of its modules share memory")
        self._changed = threading.Condition()
        self._staged: int | None = None
        self._flipped = False
        self.cast_error = 0.0
        """Largest error of a cast to the engine's own dtype, over the last `stage`."""

    @property
    def version(self) -> int:
        """Version in use; -1 before the first flip."""
        return self._used.version

    @contextmanager
    def reading(self) -> Iterator[tuple[nn.Module, int]]:
        """The module in use and its version, which stay as they are until the end of the block."""
        with self._changed:
            buffer = self._used
            buffer.readers += 1
        try:
            yield buffer.module, buffer.version
        finally:
            with self._changed:
                buffer.readers -= 1
                self._changed.notify_all()

    @torch.no_grad()
    def stage(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Copy weights into the spare buffer. Raises `SyncError` if they do not fit the module."""
        self._staged, self._flipped = None, False
        targets = full_state(self._spare.module)
        check_fit(weights, targets)
        with self._changed:
            self._changed.wait_for(lambda: self._spare.readers == 0)
        for name, target in targets.items():
            target.copy_(weights[name])
        self._note_casts(weights, targets)
        self._spare.version = version
        self._staged = version

    def flip(self) -> None:
        """Swap the buffers; readers keep the one they began with."""
        if self._staged is None:
            raise SyncError("flip without staged weights")
        self._swap()
        self._staged, self._flipped = None, True

    def unflip(self) -> None:
        """Undo the flip since the last `stage`, if there was one, and forget what is staged."""
        if self._flipped:
            self._swap()
        self._staged, self._flipped = None, False

    def _swap(self) -> None:
        with self._changed:
            self._used, self._spare = self._spare, self._used

    def _note_casts(self, weights: Mapping[str, Tensor], targets: Mapping[str, Tensor]) -> None:
        cast = {name: target for name, target in targets.items() if target.dtype != weights[name].dtype}
        errors = [
            (weights[name].to(target.device).double() - target.double()).abs().max()
            for name, target in cast.items()
            if target.numel()
        ]
        self.cast_error = float(torch.stack(errors).max()) if errors else 0.0
        if cast and self.version < 0:
            logger.warning(
                "%d of %d tensors are cast to the engine's dtype; largest error %g",
                len(cast),
                len(targets),
                self.cast_error,
            )


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
        first = names.setdefault(_place(target), name)
        if _place(weights[first]) != _place(weights[name]) and not torch.equal(weights[first], weights[name]):
            yield f"'{first}' and '{name}' are one tensor in the engine, but differ"


def _place(tensor: Tensor) -> tuple[object, ...]:
    """What two names of one tensor have in common; a tensor without memory is only like itself."""
    return (tensor.data_ptr(), tensor.shape, tensor.stride()) if tensor.numel() else (id(tensor),)


def _memory(weights: Mapping[str, Tensor]) -> set[int]:
    return {tensor.untyped_storage().data_ptr() for tensor in weights.values() if tensor.numel()}
