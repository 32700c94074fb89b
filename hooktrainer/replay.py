"""The replay buffer: groups between dispatch and learning, each in exactly one state.

pending -> running -> finished -> sampled | evicted, or running -> failed. A group moves as a whole. The buffer is
mechanism; what is too old is for the staleness policy to say. Stamping and moving the version share one lock, and
capacity is reserved at dispatch, so that handing in a finished group never blocks.
"""

from __future__ import annotations

import heapq
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from time import monotonic
from typing import Final

import attrs

from hooktrainer.errors import RolloutError, StarvedError
from hooktrainer.groups import Batch, Group, Prompt, Trajectory
from hooktrainer.metrics import Last, Metric
from hooktrainer.ports import StalenessPolicy

_LOG: Final = logging.getLogger("hooktrainer")
REMINDER_S: Final = 60.0
"""Seconds after which a loop that waits says what it waits for."""


class KeepAll:
    """The policy of a run without a staleness plugin: nothing is too old and nothing is waited for."""

    def evicts(self, staleness: int) -> bool:  # noqa: ARG002 (never evicts)
        """Never."""
        return False

    def waits_for(self, staleness: int) -> bool:  # noqa: ARG002 (never waits)
        """Never."""
        return False


KEEP_ALL: Final = KeepAll()


class GroupBuffer:
    """Thread-safe and group-atomic; engines claim and finish, the loop dispatches and samples."""

    def __init__(self, capacity: int | None = None, timeout_s: float | None = None) -> None:
        self._capacity = capacity
        self._timeout_s = timeout_s
        self._policy: StalenessPolicy = KEEP_ALL
        self._version = 0
        self._next_number = 0
        self._pending: deque[Group] = deque()
        self._running: dict[int, Group] = {}  # in the order of claiming, which is that of dispatch
        self._finished: list[tuple[int, int, Group]] = []  # heap by stamp, then dispatch number
        self._failure: tuple[Group, BaseException] | None = None
        self._closed = False
        lock = threading.RLock()
        self._claimable = threading.Condition(lock)
        self._sampleable = threading.Condition(lock)
        self._lock = lock

    @property
    def version(self) -> int:
        """The published version that new groups are stamped from."""
        with self._lock:
            return self._version

    def set_policy(self, policy: StalenessPolicy) -> None:
        """Use this staleness policy from now on."""
        with self._lock:
            self._policy = policy

    def advance(self, version: int) -> None:
        """Move the published version. Raises `ValueError` if it goes backwards."""
        with self._lock:
            if version < self._version:
                raise ValueError(f"the version cannot go backwards, from {self._version} to {version}")
            self._version = version
            self._sampleable.notify_all()

    def room(self) -> int:
        """Groups that may still be dispatched within the capacity."""
        with self._lock:
            outstanding = len(self._pending) + len(self._running) + len(self._finished)
            return 2**31 if self._capacity is None else max(0, self._capacity - outstanding)

    def dispatch(self, prompts: Sequence[Prompt]) -> None:
        """Stamp prompts and make them pending. Raises `ValueError` beyond the capacity."""
        with self._lock:
            if len(prompts) > self.room():
                raise ValueError(f"{len(prompts)} groups were dispatched into a buffer with room for {self.room()}")
            for prompt in prompts:
                self._pending.append(Group(number=self._next_number, stamp=self._version + 1, prompt=prompt))
                self._next_number += 1
            self._claimable.notify_all()

    def claim(self, limit: int, block: bool = True) -> Sequence[Group]:
        """Take up to `limit` pending groups to generate, oldest first; blocks until there is one; empty once closed."""
        with self._lock:
            if block:
                self._claimable.wait_for(lambda: self._pending or self._closed)
            if self._closed:
                return ()
            claimed = [self._pending.popleft() for _ in range(min(limit, len(self._pending)))]
            self._running.update({group.number: group for group in claimed})
            return claimed

    def finish(self, group: Group, trajectories: Sequence[Trajectory]) -> None:
        """Hand in the answers of a claimed group; never blocks."""
        with self._lock:
            self._let_go(group)
            if not trajectories:
                self._failure = self._failure or (group, RolloutError("the engine handed in a group without an answer"))
            else:
                whole = attrs.evolve(group, trajectories=tuple(trajectories))
                heapq.heappush(self._finished, (whole.stamp, whole.number, whole))
            self._sampleable.notify_all()

    def fail(self, group: Group, error: BaseException) -> None:
        """Say that a claimed group could not be generated; the first error leaves the next `sample`."""
        with self._lock:
            self._let_go(group)
            self._failure = self._failure or (group, error)
            self._sampleable.notify_all()

    def sample(self, size: int, step: int, refill: Callable[[int], None]) -> Batch:
        """Take the `size` oldest finished groups, by stamp and then dispatch number.

        Stale ones are evicted first and replaced through `refill`, which is called without the lock. Blocks until
        enough are there; gives fewer once nothing is pending or running and `refill` brings nothing. Raises
        `RolloutError` from the error of a failed group, and `StarvedError` after `timeout_s`.
        """
        evicted: list[int] = []
        deadline = None if self._timeout_s is None else monotonic() + self._timeout_s
        lost = 0
        while True:
            refill(lost)
            with self._lock:
                self._raise_failure()
                stale = self._evict(step)
                lost = len(stale)
                evicted += stale
                left = None if deadline is None else deadline - monotonic()
                if not lost and (groups := self._take(size, step)) is not None:
                    return Batch(groups=groups, evicted=tuple(evicted))
                if left is not None and left <= 0:
                    text = self._waiting_for(size, step, evicted)
                    raise StarvedError(f"starved for {self._timeout_s:g} s: {text}")
                if not lost and not self._sampleable.wait(REMINDER_S if left is None else min(left, REMINDER_S)):
                    _LOG.warning("still waiting: %s", self._waiting_for(size, step, evicted))

    def trainable(self, step: int) -> bool:
        """Whether a group is left that the policy would not evict in `step`."""
        with self._lock:
            newest_first = (*reversed(self._pending), *reversed(self._running.values()), *self._finished_groups())
            return any(not self._policy.evicts(group.staleness(step)) for group in newest_first)

    def take_metrics(self) -> Mapping[str, Metric]:
        """How many groups are in each state now."""
        with self._lock:
            return {
                "replay/pending": Last(len(self._pending)),
                "replay/running": Last(len(self._running)),
                "replay/finished": Last(len(self._finished)),
            }

    def close(self) -> None:
        """Wake everyone who waits; nothing is claimed any more."""
        with self._lock:
            self._closed = True
            self._claimable.notify_all()
            self._sampleable.notify_all()

    def _let_go(self, group: Group) -> None:
        if self._running.pop(group.number, None) is None:
            raise ValueError(f"group {group.number} is not running: it was never claimed, or was handed in before")

    def _raise_failure(self) -> None:
        if self._closed:
            raise RolloutError("the replay buffer was closed while the loop was sampling")
        if self._failure is not None:
            group, error = self._failure
            raise RolloutError(f"group {group.number} ({group.prompt.text!r}) could not be generated") from error

    def _evict(self, step: int) -> list[int]:
        stale = []
        while self._finished and self._policy.evicts(self._finished[0][2].staleness(step)):
            stale.append(heapq.heappop(self._finished)[2].staleness(step))
        return stale

    def _take(self, size: int, step: int) -> tuple[Group, ...] | None:
        """The next batch, or None while it must be waited for."""
        oldest = (next(iter(self._running.values()), None), self._pending[0] if self._pending else None)
        unfinished = [group for group in oldest if group is not None]
        if any(self._policy.waits_for(group.staleness(step)) for group in unfinished):
            return None
        if len(self._finished) < size and unfinished:
            return None
        return tuple(heapq.heappop(self._finished)[2] for _ in range(min(size, len(self._finished))))

    def _finished_groups(self) -> Iterable[Group]:
        return (group for _, _, group in reversed(self._finished))

    def _waiting_for(self, size: int, step: int, evicted: Sequence[int]) -> str:
        in_flight = [*self._running.values(), *self._pending]
        oldest = max((group.staleness(step) for group in in_flight), default=None)
        waiting = f", the oldest with S={oldest}" if oldest is not None else ""
        smallest = f", smallest S={min(evicted)}" if evicted else ""
        return (
            f"{len(self._finished)} of {size} groups sampleable in step {step}, "
            f"{len(evicted)} evicted{smallest}, policy {self._policy!r}; "
            f"{len(self._running)} running and {len(self._pending)} pending{waiting}"
        )
