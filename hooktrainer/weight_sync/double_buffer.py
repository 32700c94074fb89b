"""Two copies of the published weights: one is in use, the next version is staged into the other.

A flip swaps the two sets and never waits. A reader keeps the set that it started with. Only the next stage waits, for
readers that still use the set it writes to.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, Protocol

import torch
from torch import Tensor, nn

from hooktrainer._util.places import places_of_threads
from hooktrainer.errors import SyncError, did_you_mean
from hooktrainer.models.lora import without_adapters
from hooktrainer.models.policy import full_state
from hooktrainer.weight_sync.compatibility import mismatches, tie_key
from hooktrainer.weight_sync.copying import copy_with_checksums
from hooktrainer.weight_sync.torn_reads import Fingerprint, TornReadDetector, end_tensors
from hooktrainer.weight_sync.waiting import wait_until


class ModulePair:
    """Two modules, one for each set of weights. New readers get the one in use. Thread-safe."""

    def __init__(self, policy: Callable[[], nn.Module], sync_timeout_s: float = math.inf) -> None:
        """`policy` makes a new module at each call; `release` waits for at most `sync_timeout_s`."""
        made = (without_adapters(policy()) for _ in range(2))
        self.modules: Final = tuple(module.eval().requires_grad_(requires_grad=False) for module in made)
        first, second = (_storages(full_state(module)) for module in self.modules)
        if first & second:
            raise ValueError("`policy` must return a new module at each call; two of its modules share memory")
        self._sync_timeout_s = sync_timeout_s
        self._readers: tuple[list[str], list[str]] = ([], [])
        """Names of the threads that read each set."""
        self._in_use = (0, -1)
        self._rollbacks: list[int] = []
        self._paused = False
        self._changed = threading.Condition()

    @property
    def version(self) -> int:
        """Version in use, -1 before the first."""
        return self._in_use[1]

    @property
    def in_use(self) -> nn.Module:
        """The module in use. No flip may happen while the caller uses it."""
        return self.modules[self._in_use[0]]

    @property
    def paused(self) -> bool:
        """Whether new readers have to wait for `resume`."""
        with self._changed:
            return self._paused

    @property
    def rollbacks(self) -> Sequence[int]:
        """The version that each failed sync restored, oldest first."""
        return self._rollbacks

    @contextmanager
    def reading(self) -> Iterator[tuple[nn.Module, int]]:
        """Yield the module in use and its version; neither changes until the block ends. Wait while paused."""
        reader = threading.current_thread().name
        with self._changed:
            self._changed.wait_for(lambda: not self._paused)
            index, version = self._in_use
            self._readers[index].append(reader)
        try:
            yield self.modules[index], version
        finally:
            with self._changed:
                self._readers[index].remove(reader)
                self._changed.notify_all()

    def release(self, index: int) -> None:
        """Wait until no thread reads this set, which must not be the one in use. Raises `SyncError` at the timeout."""

        def awaited() -> str:
            return f"{', '.join(sorted(set(self._readers[index])))} to finish answers that started two versions ago"

        def places() -> str:
            return places_of_threads(set(self._readers[index]))

        with self._changed:
            seconds = self._sync_timeout_s
            if wait_until(self._changed, lambda: not self._readers[index], seconds, lambda: f"{awaited()}; {places()}"):
                return
            raise SyncError(
                f"waited {seconds:g} s (rollout.sync_timeout_s) for {awaited()}. Either a `score` never returns, or "
                f"answers take that long: then raise rollout.sync_timeout_s; {places()}"
            )

    def limit_waits(self) -> None:
        """Do nothing: only `release` waits, and no undo calls it."""

    def pause(self) -> None:
        """Let no new reader start until `resume`."""
        with self._changed:
            self._paused = True

    def use(self, index: int, version: int) -> None:
        """Give this set to new readers. A version below the current one is recorded as a rollback."""
        with self._changed:
            if version < self._in_use[1]:
                self._rollbacks.append(version)
            self._in_use = (index, version)

    def wait_for_resume(self) -> None:
        """Wait until new readers can start."""
        with self._changed:
            self._changed.wait_for(lambda: not self._paused)

    def resume(self) -> None:
        """Let new readers start."""
        with self._changed:
            self._paused = False
            self._changed.notify_all()


class WeightReaders(Protocol):
    """Readers of the two sets of weights: threads, or processes that map the memory."""

    def release(self, index: int) -> None:
        """Return once no reader uses this set, which is not the one in use. Raises `SyncError` at the timeout."""
        ...

    def limit_waits(self) -> None:
        """Wait only briefly for each reader until the next `release`, because a failed sync is being undone."""
        ...

    def pause(self) -> None:
        """Return once no reader can start, until `resume`."""
        ...

    def use(self, index: int, version: int) -> None:
        """Return once every new reader gets this set."""
        ...

    def resume(self) -> None:
        """Let readers start again."""
        ...


class DoubleBuffer:
    """Stages and flips two sets of weights while readers use them. Call it on the loop's thread only."""

    def __init__(
        self, sets: Sequence[Mapping[str, Tensor]], readers: WeightReaders, detector: TornReadDetector | None = None
    ) -> None:
        self._sets = sets
        self._tie_keys = [{name: tie_key(tensor) for name, tensor in own.items()} for own in sets]
        self._readers = readers
        self._used = 0
        self._versions = [-1, -1]
        self._staging: int | None = None
        self._missing: set[object] = set()
        """Tie keys of the tensors of the spare set that have not arrived."""
        self._before: int | None = None
        """The set that was in use before the last flip, while the flip can be undone."""
        self.detector: Final = detector or TornReadDetector()

    @property
    def version(self) -> int:
        """Version that new readers get, -1 before the first flip."""
        return self._versions[self._used]

    @property
    def staging(self) -> int | None:
        """Version that is staged and not in use; None if there is none."""
        return self._staging

    @property
    def spare(self) -> int:
        """Index of the set that is not in use."""
        return 1 - self._used

    def spec(self) -> Mapping[str, Tensor]:
        """Return the tensors that can be staged: those of the spare set."""
        return self._sets[1 - self._used]

    @torch.no_grad()
    def stage(self, weights: Mapping[str, Tensor], version: int) -> Mapping[str, int]:
        """Copy a bucket into the spare set, and return the checksums of the copy. Raises `SyncError` on a mismatch."""
        targets = self.spec()
        _check_bucket(weights, targets)
        if self._staging != version:
            self._start_staging(version)
        held = copy_with_checksums(targets, weights, torch.get_num_threads())
        keys = self._tie_keys[1 - self._used]
        self._missing.difference_update(keys[name] for name in weights)
        return held

    def _start_staging(self, version: int) -> None:
        spare = 1 - self._used
        self._staging, self._before = None, None
        self._readers.release(spare)
        self._versions[spare], self._staging = version, version
        self._missing = set(self._tie_keys[spare].values())

    def pause(self) -> None:
        """Return once no new reader can start, until `resume`."""
        self._readers.pause()

    def check_staged(self) -> None:
        """Raise `SyncError` unless all tensors of a version are staged."""
        keys = self._tie_keys[1 - self._used]
        if self._staging is None:
            raise SyncError("flip without staged weights")
        if missing := [name for name, key in keys.items() if key in self._missing]:
            raise SyncError(
                f"flip to version {self._staging}, but {len(missing)} of {len(keys)} tensors were not staged, such as "
                f"'{missing[0]}'"
            )

    def flip(self) -> None:
        """Swap the sets; readers keep the set that they started with."""
        self.check_staged()
        assert self._staging is not None
        self.detector.publish(Fingerprint.of(self._staging, end_tensors(self.spec())))
        self._staging, self._before = None, self._used
        self._use(1 - self._used)

    def unflip(self) -> None:
        """Undo the flip since the last `stage`, even an incomplete one, and discard staged weights.

        The call may be repeated if it was interrupted.
        """
        self._staging = None
        self._readers.limit_waits()
        if self._before is not None:
            self._use(self._before)
        self._before = None  # last, so that an interrupted call can be repeated

    def resume(self) -> None:
        """Let new readers start."""
        self._readers.resume()

    def _use(self, index: int) -> None:
        try:
            self._readers.use(index, self._versions[index])
        finally:  # an incomplete flip counts as made, so that it is undone
            self._used = index


def _check_bucket(weights: Mapping[str, Tensor], targets: Mapping[str, Tensor]) -> None:
    faults = []
    for name, weight in weights.items():
        if name not in targets:
            faults.append(f"'{name}' is unknown to the engine.{did_you_mean(name, targets)}")
            continue
        faults += mismatches(name, weight, targets[name])
        if weight.dtype != targets[name].dtype:
            faults.append(f"'{name}' is {weight.dtype}, the engine's {targets[name].dtype}; the transport must cast it")
    if faults:
        raise SyncError(f"weights do not fit the engine: {'; '.join(dict.fromkeys(faults))}")


def _storages(weights: Mapping[str, Tensor]) -> set[int]:
    return {tensor.untyped_storage().data_ptr() for tensor in weights.values() if tensor.numel()}
