"""The replay buffer: groups between dispatch and training, each in exactly one state.

pending -> running -> finished -> sampled | evicted, or running -> failed. A group changes state as a whole. The buffer
implements the mechanism; the staleness strategy decides which groups are too old. Stamping groups and moving the
version share one lock. Capacity is reserved at dispatch, so that handing in a finished group never blocks.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from hooktrainer.errors import LedgerError, RolloutError, StarvedError
from hooktrainer.metrics import Last, Metric
from hooktrainer.ports import Batch, Clock, Group, Prompt, Replacement, Strategy
from hooktrainer.replay.failures import Failures
from hooktrainer.replay.ledger import Ledger
from hooktrainer.replay.options import ReplayOptions
from hooktrainer.replay.queue import pack_queue, unpack_queue
from hooktrainer.replay.source import BaseGroupSource
from hooktrainer.replay.statistics import ReplayStatistics

_LOG: Final = logging.getLogger("hooktrainer")
REMINDER_S: Final = 60.0
"""Seconds between two log lines of a loop that waits for groups."""


class GroupBuffer(BaseGroupSource):
    """Implementation of `hooktrainer.ports.ReplayBuffer`; thread-safe.

    Engines claim and finish groups, the loop dispatches and samples them.
    """

    def __init__(
        self, limits: ReplayOptions | None = None, *, clock: Clock | None = None, strict: bool = False
    ) -> None:
        super().__init__(limits, clock=clock)
        self._strict = strict
        self._policy: Strategy = Strategy()
        self._version = 0
        self._next_number = 0
        self._groups_per_step = 0
        self._planned_before = 0
        """Groups planned for versions of another `groups_per_step`, beyond those planned at the present one."""

    @property
    def version(self) -> int:
        """Return the published version, which new groups are stamped with."""
        with self._lock:
            return self._version

    def set_policy(self, policy: Strategy) -> None:
        """Set the staleness strategy."""
        with self._lock:
            self._policy = policy

    def advance(self, version: int) -> None:
        """Set the published version.

        Raises `ValueError` if it goes backwards. A strict buffer raises `LedgerError` if the ledger is not balanced.
        """
        with self._lock:
            if version < self._version:
                raise ValueError(f"the version cannot go backwards, from {self._version} to {version}")
            self._version = version
            self.ledger.move(version)
            if self._strict and (self.ledger.imbalance or self.ledger.outstanding != len(self._queue)):
                raise LedgerError(
                    f"at version {version} the ledger is off by {self.ledger.imbalance}, with "
                    f"{self.ledger.outstanding} groups outstanding in it and {len(self._queue)} in the buffer"
                )
            self._sampleable.notify_all()

    def may_dispatch(self, requested: int, groups_per_step: int, *, makes_room: bool = False) -> int:
        """Return how many groups may be dispatched now; changes nothing.

        That is `requested`, or the budget of the strategy, limited by the capacity.
        """
        with self._lock:
            ledger = self.ledger
            budget = self._policy.budget(
                version=self._version,
                trained=ledger.sampled.groups - self._planned_with(groups_per_step),
                outstanding=ledger.outstanding,
                per_step=groups_per_step,
            )
            allowed = requested if budget is None else max(0, budget)
            if self._limits.capacity is None:
                return allowed
            room = self._limits.capacity - len(self._queue)
            if (
                makes_room and budget is None and self._limits.when_full == "evict"
            ):  # groups within a budget must not evict others
                room += self._queue.counts["finished"]
            return max(0, min(allowed, room))  # a run may resume with a lower capacity

    def dispatch(self, prompts: Sequence[Prompt], groups_per_step: int | None = None) -> int:
        """Stamp prompts and make them pending; return how many finished groups were evicted to make room.

        `groups_per_step` is the size of a step from this dispatch on, unchanged if left out. Raises `ValueError` if the
        groups exceed the capacity.
        """
        with self._lock:
            if groups_per_step is not None:
                self._planned_before = self._planned_with(groups_per_step)
                self._groups_per_step = groups_per_step
            if not prompts:
                return 0
            evicted = self._make_room(len(prompts))
            for prompt in prompts:
                group = Group(number=self._next_number, stamp=self._version + 1, prompt=prompt)
                self._queue.append(group)
                self.ledger.open(group)
                self._next_number += 1
            self._claimable.notify_all()
            return evicted

    def sample(self, size: int, step: int, refill: Callable[[Sequence[Replacement]], None]) -> Batch:
        """Remove and return the `size` oldest finished groups, by stamp and then by dispatch number.

        Stale groups are evicted first. `refill` is called without the lock, to dispatch replacements and to let an
        engine without threads work. Block until enough groups are finished. Return fewer once nothing is pending or
        running and `refill` adds nothing. Raises `RolloutError` for a failed group beyond the limit, the error of a
        replay filter, `StarvedError` after `sample_timeout_s`, and `RunError` if a group is stamped for a later step.
        """
        evicted, replacements = list[int](), list[Replacement]()
        limit, now = self._limits.sample_timeout_s, self._clock.now()
        deadline, reminder = None if limit is None else now + limit, now + REMINDER_S
        while True:
            refill(replacements)
            with self._lock:
                self._raise_failure()
                if (newest := self._queue.newest) is not None:
                    newest.check_step(step)
                self._fail_timed_out()
                stale = self._evict(step)
                evicted += [group.staleness(step) for group in stale]
                replacements = [self._replacement(group) for group in stale] + self._failures.take_replacements()
                if not replacements and (groups := self._take(size, step)) is not None:
                    return Batch(groups=groups, evicted=tuple(evicted))
                if deadline is not None and self._clock.now() >= deadline:
                    raise StarvedError(f"starved for {limit:g} s: {self._waiting_for(size, step, evicted)}")
                if not replacements:
                    woken = self._wait(self._seconds_until_due(deadline, reminder))
                    if (now := self._clock.now()) >= reminder:
                        reminder = now + REMINDER_S
                        if not woken:
                            _LOG.warning("still waiting: %s", self._waiting_for(size, step, evicted))

    def trainable(self, step: int) -> bool:
        """Return whether a group that exists now could be trained in `step`, dispatched again if necessary."""
        with self._lock:
            if self._failures.has_prompts:
                return True
            newest = self._queue.newest
            return newest is not None and (self._policy.requeues or not self._policy.evicts(newest.staleness(step)))

    def take_metrics(self) -> Mapping[str, Metric]:
        """Return the number of groups in each state, counts since the last call, and the totals of the ledger."""
        with self._lock:
            return {
                **{f"replay/{state}": Last(count) for state, count in self._queue.counts.items()},
                **self._statistics.take_metrics(),
                **self._failures.metrics(),
                **self.ledger.metrics(),
            }

    def state_dict(self) -> Mapping[str, object]:
        """Return a consistent copy of all groups with their stamps and states, the ledger and the counts."""
        with self._lock:
            parts = {name: part.state_dict() for name, part in self._parts().items()}
            return {
                "version": self._version,
                "next_number": self._next_number,
                "groups_per_step": self._groups_per_step,
                "planned_before": self._planned_before,
                "queue": pack_queue(self._queue),
                **parts,
            }

    def load_state_dict(self, state: Mapping[str, Any], *, keep_finished: bool = True) -> Sequence[Replacement]:
        """Restore the state returned by `state_dict()`; return the groups to be dispatched again.

        Those are the groups that were running and, without `keep_finished`, the finished ones. Raises `ValueError` if
        a group was dispatched before.
        """
        with self._lock:
            if self._next_number:
                raise ValueError(
                    f"{self._next_number} groups were dispatched already; restore a state before the first dispatch"
                )
            queue, removed = unpack_queue(state["queue"], keep_finished=keep_finished)
            newest = max((group.stamp for group in [*queue.groups(), *removed]), default=1)
            if newest > state["version"] + 1:
                raise ValueError(f"a group of the state is stamped {newest}, beyond its version {state['version']} + 1")
            for name, part in self._parts().items():
                part.load_state_dict(state[name])
            self._version, self._next_number = state["version"], state["next_number"]
            self._groups_per_step, self._planned_before = state["groups_per_step"], state["planned_before"]
            self._queue = queue
            for group in removed:
                self.ledger.drop(group, "restart")
            return [Replacement(group.prompt) for group in removed]

    def _parts(self) -> Mapping[str, Ledger | Failures | ReplayStatistics]:
        return {"ledger": self.ledger, "failures": self._failures, "statistics": self._statistics}

    def _planned_with(self, groups_per_step: int) -> int:
        """Return the value of `_planned_before` for steps of this size."""
        if self._groups_per_step in (0, groups_per_step):
            return self._planned_before
        return self._planned_before + self._version * (self._groups_per_step - groups_per_step)

    def _wait(self, seconds: float) -> bool:
        """Release the lock and wait for a change; return False if there was none in this time."""
        return self._sampleable.wait(seconds)

    def _seconds_until_due(self, deadline: float | None, reminder: float) -> float:
        """Return the seconds until the next timeout of the sample or of a group, or the next reminder."""
        limit, first = self._limits.group_timeout_s, next(self._queue.running(), None)
        times = [reminder, deadline, None if first is None or limit is None else first[1] + limit]
        return max(0.0, min(time for time in times if time is not None) - self._clock.now())

    def _make_room(self, needed: int) -> int:
        """Evict the stalest finished groups as far as the capacity requires; return their number."""
        if self._limits.capacity is None:
            return 0
        missing = len(self._queue) + needed - self._limits.capacity
        stalest = list(itertools.islice(self._queue.finished(), max(0, missing)))
        if missing > 0 and (self._limits.when_full == "block" or len(stalest) < missing):
            raise ValueError(f"{needed} groups were dispatched into a buffer with room for {needed - missing}")
        for group in stalest:
            self._queue.remove(group)
            self.ledger.drop(group, "capacity")
            self._statistics.count("evicted_capacity")
            _LOG.warning("the buffer is full: group %d, stamped %d, is evicted", group.number, group.stamp)
        return len(stalest)

    def _evict(self, step: int) -> list[Group]:
        evicts = self._policy.evicts
        stale = list(itertools.takewhile(lambda group: evicts(group.staleness(step)), self._queue.finished()))
        for group in stale:
            self._queue.remove(group)
            self.ledger.drop(group, "stale")
        return stale

    def _replacement(self, group: Group) -> Replacement:
        """Return the replacement of a stale group."""
        self._statistics.dropped(group.prompt)
        return Replacement(group.prompt if self._policy.requeues else None)

    def _take(self, size: int, step: int) -> tuple[Group, ...] | None:
        """Remove and return the next batch; None if the loop has to wait for it."""
        unfinished = self._queue.oldest_unfinished()
        if any(self._policy.waits_for(group.staleness(step)) for group in unfinished):
            return None
        groups = tuple(itertools.islice(self._queue.finished(in_order=self._policy.in_order), size))
        if len(groups) < size and unfinished:
            return None
        for group in groups:
            self._queue.remove(group)
            self.ledger.sample(group)
            self._statistics.trained(group.prompt)
        return groups

    def _raise_failure(self) -> None:
        if self._closed:
            raise RolloutError("the replay buffer was closed while the loop was sampling")
        self._failures.raise_if_fatal()

    def _waiting_for(self, size: int, step: int, evicted: Sequence[int]) -> str:
        oldest = max((group.staleness(step) for group in self._queue.oldest_unfinished()), default=None)
        waiting = f", the oldest with S={oldest}" if oldest is not None else ""
        smallest = f", smallest S={min(evicted)}" if evicted else ""
        counts = self._queue.counts
        return (
            f"{counts['finished']} of {size} groups sampleable in step {step}, {len(evicted)} evicted{smallest}, "
            f"strategy {self._policy!r}; {counts['running']} running, {counts['pending']} pending{waiting}"
            f"{self._workers()}"
        )
