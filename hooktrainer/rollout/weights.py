"""An engine's own copy of the published weights, in two sets.

One set is in use, the other takes what is staged; a flip swaps them. A reader keeps the set that it began with: a flip
never waits for it, only the stage after that does, if the reader is still there by then.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, Protocol

import torch
from torch import Tensor, nn

from hooktrainer.errors import SyncError
from hooktrainer.models.policy import full_state
from hooktrainer.rollout.fit import check_fit

_LOG: Final = logging.getLogger("hooktrainer")


class Modules:
    """Two modules, of which new readers see the one in use."""

    def __init__(self, policy: Callable[[], nn.Module]) -> None:
        self.modules: Final = tuple(policy().eval().requires_grad_(requires_grad=False) for _ in range(2))
        first, second = (_memory(full_state(module)) for module in self.modules)
        if first & second:
            raise ValueError("`policy` has to make a new module at each call; two of its modules share memory")
        self._readers = [0, 0]
        self._in_use = (0, -1)
        self._changed = threading.Condition()

    @property
    def version(self) -> int:
        """Version in use; -1 before the first."""
        return self._in_use[1]

    @contextmanager
    def reading(self) -> Iterator[tuple[nn.Module, int]]:
        """The module in use and its version, which stay as they are until the end of the block."""
        with self._changed:
            place, version = self._in_use
            self._readers[place] += 1
        try:
            yield self.modules[place], version
        finally:
            with self._changed:
                self._readers[place] -= 1
                self._changed.notify_all()

    def release(self, place: int) -> None:
        """Wait until nobody reads this set, which must not be the one in use."""
        with self._changed:
            self._changed.wait_for(lambda: self._readers[place] == 0)

    def use(self, place: int, version: int) -> None:
        """Give this set to new readers."""
        with self._changed:
            self._in_use = (place, version)


class Readers(Protocol):
    """Whoever reads two sets of weights: threads, or processes that have mapped the memory."""

    def release(self, place: int) -> None:
        """Return once nobody reads this set, which is not the one in use."""
        ...

    def use(self, place: int, version: int) -> None:
        """Return once every new reader gets this set."""
        ...


class DoubleBuffer:
    """Stages and flips two sets of weights under their readers, on the loop's thread."""

    def __init__(self, sets: Sequence[Mapping[str, Tensor]], readers: Readers) -> None:
        self._sets = sets
        self._readers = readers
        self._used = 0
        self._versions = [-1, -1]
        self._staged = False
        self._before: int | None = None
        """The set that was in use before the last flip, while it can be undone."""
        self.cast_error = 0.0
        """Largest error of a cast to the engine's own dtype, over the last `stage`."""

    @property
    def version(self) -> int:
        """Version that every new reader gets; -1 before the first flip."""
        return self._versions[self._used]

    @torch.no_grad()
    def stage(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Copy weights into the spare set. Raises `SyncError` if they do not fit it."""
        self._staged, self._before = False, None
        spare = 1 - self._used
        targets = self._sets[spare]
        check_fit(weights, targets)
        self._readers.release(spare)
        for name, target in targets.items():
            target.copy_(weights[name])
        self._note_casts(weights, targets)
        self._versions[spare] = version
        self._staged = True

    def flip(self) -> None:
        """Swap the sets; readers keep the one they began with."""
        if not self._staged:
            raise SyncError("flip without staged weights")
        self._staged, self._before = False, self._used
        self._use(1 - self._used)

    def unflip(self) -> None:
        """Undo the flip since the last `stage`, even one that failed half-way, and forget what is staged."""
        before, self._staged, self._before = self._before, False, None
        if before is not None:
            self._use(before)

    def _use(self, place: int) -> None:
        self._readers.use(place, self._versions[place])
        self._used = place

    def _note_casts(self, weights: Mapping[str, Tensor], targets: Mapping[str, Tensor]) -> None:
        cast = {name: target for name, target in targets.items() if target.dtype != weights[name].dtype}
        errors = [
            (weights[name].to(target.device).double() - target.double()).abs().max()
            for name, target in cast.items()
            if target.numel()
        ]
        self.cast_error = float(torch.stack(errors).max()) if errors else 0.0
        if cast and self.version < 0:
            _LOG.warning(
                "%d of %d tensors are cast to the engine's dtype; largest error %g",
                len(cast),
                len(targets),
                self.cast_error,
            )


def _memory(weights: Mapping[str, Tensor]) -> set[int]:
    return {tensor.untyped_storage().data_ptr() for tensor in weights.values() if tensor.numel()}
