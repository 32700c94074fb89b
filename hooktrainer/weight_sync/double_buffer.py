"""An engine's own copy of the published weights, in two sets.

One set is in use, the other takes what is staged; a flip swaps them. A reader keeps the set that it began with: a flip
never waits for it, only the stage after that does, if the reader is still there by then.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, Protocol

import torch
from torch import Tensor, nn

from hooktrainer.errors import SyncError, did_you_mean
from hooktrainer.models.lora import without_adapters
from hooktrainer.models.policy import full_state
from hooktrainer.weight_sync.checksums import filled
from hooktrainer.weight_sync.compatibility import misfits, place_of
from hooktrainer.weight_sync.torn_reads import Fingerprint, TornReadDetector, ends_of
from hooktrainer.weight_sync.waiting import wait_until


class ModulePair:
    """Two modules, of which new readers see the one in use."""

    def __init__(self, policy: Callable[[], nn.Module], sync_timeout_s: float = math.inf) -> None:
        """`policy` makes a new module at each call; `release` waits no longer than `sync_timeout_s`."""
        made = (without_adapters(policy()) for _ in range(2))
        self.modules: Final = tuple(module.eval().requires_grad_(requires_grad=False) for module in made)
        first, second = (_memory(full_state(module)) for module in self.modules)
        if first & second:
            raise ValueError("`policy` has to make a new module at each call; two of its modules share memory")
        self._sync_timeout_s = sync_timeout_s
        self._readers: tuple[list[str], list[str]] = ([], [])
        """Threads that read each set, by name."""
        self._in_use = (0, -1)
        self._paused = False
        self._changed = threading.Condition()

    @property
    def version(self) -> int:
        """Version in use; -1 before the first."""
        return self._in_use[1]

    @property
    def in_use(self) -> nn.Module:
        """The module in use, for whoever is certain that no other one comes into use meanwhile."""
        return self.modules[self._in_use[0]]

    @contextmanager
    def reading(self) -> Iterator[tuple[nn.Module, int]]:
        """The module in use and its version, which stay as they are until the end of the block; waits if paused."""
        reader = threading.current_thread().name
        with self._changed:
            self._changed.wait_for(lambda: not self._paused)
            place, version = self._in_use
            self._readers[place].append(reader)
        try:
            yield self.modules[place], version
        finally:
            with self._changed:
                self._readers[place].remove(reader)
                self._changed.notify_all()

    def release(self, place: int) -> None:
        """Wait until nobody reads this set, which must not be the one in use. Raises `SyncError` after the limit."""

        def awaited() -> str:
            return f"{', '.join(sorted(set(self._readers[place])))} to end answers that began two versions ago"

        with self._changed:
            seconds = self._sync_timeout_s
            if wait_until(self._changed, lambda: not self._readers[place], seconds, awaited):
                return
            raise SyncError(
                f"waited {seconds:g} s (rollout.sync_timeout_s) for {awaited()}. A `score` that never returns does "
                "this; if they only take that long, raise rollout.sync_timeout_s"
            )

    def hurry(self) -> None:
        """Nothing to do: only `release` waits for anybody."""

    def pause(self) -> None:
        """Let no new reader in."""
        with self._changed:
            self._paused = True

    def use(self, place: int, version: int) -> None:
        """Give this set to new readers."""
        with self._changed:
            self._in_use = (place, version)

    def resume(self) -> None:
        """Let new readers in."""
        with self._changed:
            self._paused = False
            self._changed.notify_all()


class WeightReaders(Protocol):
    """Whoever reads two sets of weights: threads, or processes that have mapped the memory."""

    def release(self, place: int) -> None:
        """Return once nobody reads this set, which is not the one in use. Raises `SyncError` if that takes too long."""
        ...

    def hurry(self) -> None:
        """A sync is being undone: until the next `release`, wait for nobody longer than a moment."""
        ...

    def pause(self) -> None:
        """Return once nobody begins to read, until `resume`."""
        ...

    def use(self, place: int, version: int) -> None:
        """Return once every new reader gets this set."""
        ...

    def resume(self) -> None:
        """Let readers begin again."""
        ...


class DoubleBuffer:
    """Stages and flips two sets of weights under their readers, on the loop's thread."""

    def __init__(
        self, sets: Sequence[Mapping[str, Tensor]], readers: WeightReaders, detector: TornReadDetector | None = None
    ) -> None:
        self._sets = sets
        self._places = [{name: place_of(tensor) for name, tensor in own.items()} for own in sets]
        self._readers = readers
        self._used = 0
        self._versions = [-1, -1]
        self._staging: int | None = None
        self._missing: set[object] = set()
        """Places of the spare set that nothing has arrived for."""
        self._before: int | None = None
        """The set that was in use before the last flip, while it can be undone."""
        self.detector: Final = detector or TornReadDetector()

    @property
    def version(self) -> int:
        """Version that every new reader gets; -1 before the first flip."""
        return self._versions[self._used]

    def spec(self) -> Mapping[str, Tensor]:
        """What can be staged: the tensors of the spare set."""
        return self._sets[1 - self._used]

    @torch.no_grad()
    def stage(self, weights: Mapping[str, Tensor], version: int) -> Mapping[str, int]:
        """Copy a bucket into the spare set; checksums of what is there then. Raises `SyncError` if it does not fit."""
        targets = self.spec()
        _check_bucket(weights, targets)
        if self._staging != version:
            self._begin(version)
        held = filled(targets, weights, torch.get_num_threads())
        places = self._places[1 - self._used]
        self._missing.difference_update(places[name] for name in weights)
        return held

    def _begin(self, version: int) -> None:
        spare = 1 - self._used
        self._staging, self._before = None, None
        self._readers.release(spare)
        self._versions[spare], self._staging = version, version
        self._missing = set(self._places[spare].values())

    def pause(self) -> None:
        """Let no new reader in, until `resume`."""
        self._readers.pause()

    def flip(self) -> None:
        """Swap the sets; readers keep the one they began with."""
        places = self._places[1 - self._used]
        if self._staging is None:
            raise SyncError("flip without staged weights")
        if missing := [name for name, place in places.items() if place in self._missing]:
            raise SyncError(
                f"flip to version {self._staging}, but {len(missing)} of {len(places)} tensors never arrived, such as "
                f"'{missing[0]}'"
            )
        self.detector.publish(Fingerprint.of(self._staging, ends_of(self.spec())))
        self._staging, self._before = None, self._used
        self._use(1 - self._used)

    def unflip(self) -> None:
        """Undo the flip since the last `stage`, even one that failed half-way, and forget what is staged.

        May be called again if it was broken off.
        """
        self._staging = None
        self._readers.hurry()
        if self._before is not None:
            self._use(self._before)
        self._before = None  # last, for whoever has to call it again

    def resume(self) -> None:
        """Let new readers in again."""
        self._readers.resume()

    def _use(self, place: int) -> None:
        try:
            self._readers.use(place, self._versions[place])
        finally:  # half-way counts as done, so that it is undone
            self._used = place


def _check_bucket(weights: Mapping[str, Tensor], targets: Mapping[str, Tensor]) -> None:
    faults = []
    for name, weight in weights.items():
        if name not in targets:
            faults.append(f"'{name}' is unknown to the engine.{did_you_mean(name, targets)}")
            continue
        faults += misfits(name, weight, targets[name])
        if weight.dtype != targets[name].dtype:
            faults.append(f"'{name}' is {weight.dtype}, the engine's {targets[name].dtype}; the transport casts")
    if faults:
        raise SyncError(f"weights do not fit the engine: {'; '.join(dict.fromkeys(faults))}")


def _memory(weights: Mapping[str, Tensor]) -> set[int]:
    return {tensor.untyped_storage().data_ptr() for tensor in weights.values() if tensor.numel()}
