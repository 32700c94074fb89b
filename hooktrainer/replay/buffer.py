"""The replay buffer: groups between dispatch and learning, each in exactly one state.

pending -> running -> finished -> sampled | evicted, or running -> failed. A group moves as a whole. The buffer is
mechanism; what is too old is for the staleness strategy to say. Stamping and moving the version share one lock, and
capacity is reserved at dispatch, so that handing in a finished group never blocks.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from hooktrainer.errors import LedgerError, RolloutError, StarvedError
from hooktrainer.metrics import Last, Metric
from hooktrainer.ports import Batch, Clock, Group, Lost, Prompt, StalenessPolicy
from hooktrainer.replay.failures import Losses
from hooktrainer.replay.ledger import Ledger
from hooktrainer.replay.options import ReplayOptions
from hooktrainer.replay.queue import pack_line, unpack_line
from hooktrainer.replay.source import Intake
from hooktrainer.replay.statistics import Turnover
from hooktrainer.replay.strategies import Strategy

_LOG: Final = logging.getLogger("hooktrainer")
REMINDER_S: Final = 60.0
"""Seconds after which a loop that waits says what it waits for."""


class GroupBuffer(Intake):
    """Thread-safe and group-atomic; engines claim and finish, the loop dispatches and samples."""

    def __init__(
        self, limits: ReplayOptions | None = None, *, clock: Clock | None = None, strict: bool = False
    ) -> None:
        super().__init__(limits, clock=clock)
        self._strict = strict
        self._policy: StalenessPolicy = Strategy()
        self._version = 0
        self._next_number = 0
        self._per_step = 0
        self._planned_before = 0
        """Groups that versions of another `per_step` stood for, beyond what they would at the present one."""

    @property
    def version(self) -> int:
        """The published version that new groups are stamped from."""
        with self._lock:
            return self._version

    def set_policy(self, policy: StalenessPolicy) -> None:
        """Use this staleness strategy from now on."""
        with self._lock:
            self._policy = policy

    def advance(self, version: int) -> None:
        """Move the published version. Raises `ValueError` if it goes backwards, `LedgerError` if strict and off."""
        with self._lock:
            if version < self._version:
                raise ValueError(f"the version cannot go backwards, from {self._version} to {version}")
            self._version = version
            self.ledger.move(version)
            if self._strict and (self.ledger.imbalance or self.ledger.outstanding != len(self._line)):
                raise LedgerError(
                    f"at version {version} the ledger is off by {self.ledger.imbalance}, with "
                    f"{self.ledger.outstanding} groups outstanding in it and {len(self._line)} in the buffer"
                )
            self._sampleable.notify_all()

    def may_dispatch(self, wanted: int, per_step: int, *, makes_room: bool = False) -> int:
        """Groups that may be dispatched now: `wanted`, or what the strategy's budget says, within the capacity."""
        with self._lock:
            ledger = self.ledger
            if self._per_step not in (0, per_step):
                self._planned_before += self._version * (self._per_step - per_step)
            self._per_step = per_step
            budget = self._policy.budget(
                version=self._version,
                trained=ledger.sampled.groups - self._planned_before,
                outstanding=ledger.outstanding,
                per_step=per_step,
            )
            allowed = wanted if budget is None else max(0, budget)
            if self._limits.capacity is None:
                return allowed
            room = self._limits.capacity - len(self._line)
            if makes_room and budget is None and self._limits.when_full == "evict":  # a budget is no demand
                room += self._line.num_finished
            return max(0, min(allowed, room))  # a run can go on with a lower capacity

    def dispatch(self, prompts: Sequence[Prompt]) -> int:
        """Stamp prompts and make them pending; returns how many of the stalest finished groups had to make room.

        Raises `ValueError` beyond the capacity.
        """
        with self._lock:
            thrown_away = self._make_room(len(prompts))
            for prompt in prompts:
                group = Group(number=self._next_number, stamp=self._version + 1, prompt=prompt)
                self._line.append(group)
                self.ledger.open(group)
                self._next_number += 1
            self._claimable.notify_all()
            return thrown_away

    def sample(self, size: int, step: int, refill: Callable[[Sequence[Lost]], None]) -> Batch:
        """Take the `size` oldest finished groups, by stamp and then dispatch number.

        Stale ones are evicted first. `refill` is called without the lock, to replace what was lost and to let an engine
        without threads work. Blocks until enough are there; gives fewer once nothing is pending or running and `refill`
        brings nothing. Raises `RolloutError` from the error of a failed group, and `StarvedError` after the time limit.
        """
        evicted, lost = list[int](), list[Lost]()
        limit = self._limits.sample_timeout_s
        deadline = None if limit is None else self._clock.now() + limit
        while True:
            refill(lost)
            with self._lock:
                self._raise_failure()
                self._give_up_late()
                stale = self._evict(step)
                evicted += [group.staleness(step) for group in stale]
                lost = [self._replacement(group) for group in stale] + self._losses.take()
                if not lost and (groups := self._take(size, step)) is not None:
                    return Batch(groups=groups, evicted=tuple(evicted))
                if deadline is not None and self._clock.now() >= deadline:
                    raise StarvedError(f"starved for {limit:g} s: {self._waiting_for(size, step, evicted)}")
                if not lost and not self._wait(self._patience(deadline)):
                    _LOG.warning("still waiting: %s", self._waiting_for(size, step, evicted))

    def trainable(self, step: int) -> bool:
        """Whether a group is left that could be trained in `step`, as it is or dispatched again."""
        with self._lock:
            if self._losses.owes_prompts:
                return True
            newest = self._line.newest
            return newest is not None and (self._policy.requeues or not self._policy.evicts(newest.staleness(step)))

    def take_metrics(self) -> Mapping[str, Metric]:
        """How many groups are in each state now, what was lost since the last call, and the totals of the ledger."""
        with self._lock:
            return {
                "replay/pending": Last(self._line.num_pending),
                "replay/running": Last(self._line.num_running),
                "replay/finished": Last(self._line.num_finished),
                **self._turnover.take_metrics(),
                **self._losses.metrics(),
                **self.ledger.metrics(),
            }

    def state_dict(self) -> Mapping[str, object]:
        """A copy of all groups with their stamps and states, and of the books over them, as of one moment."""
        with self._lock:
            parts = {name: part.state_dict() for name, part in self._parts().items()}
            return {
                "version": self._version,
                "next_number": self._next_number,
                "per_step": self._per_step,
                "planned_before": self._planned_before,
                "line": pack_line(self._line),
                **parts,
            }

    def load_state_dict(self, state: Mapping[str, Any], *, keep_finished: bool = True) -> Sequence[Lost]:
        """Take back what `state_dict` gave, before anything is dispatched; returns what is to be dispatched again."""
        with self._lock:
            if self._next_number:
                raise ValueError(f"{self._next_number} groups were dispatched already; a state is taken back before")
            for name, part in self._parts().items():
                part.load_state_dict(state[name])
            self._version, self._next_number = state["version"], state["next_number"]
            self._per_step, self._planned_before = state["per_step"], state["planned_before"]
            self._line, gone = unpack_line(state["line"], keep_finished=keep_finished)
            for group in gone:
                self.ledger.drop(group, "restart")
            return [Lost(group.prompt) for group in gone]

    def _parts(self) -> Mapping[str, Ledger | Losses | Turnover]:
        return {"ledger": self.ledger, "losses": self._losses, "turnover": self._turnover}

    def _wait(self, seconds: float) -> bool:
        """Wait for a change, with the lock let go meanwhile; False if there was none in time."""
        return self._sampleable.wait(seconds)

    def _patience(self, deadline: float | None) -> float:
        """Seconds until something is due: a time limit, or a reminder."""
        limit, first = self._limits.group_timeout_s, next(self._line.running(), None)
        moments = [deadline, None if first is None or limit is None else first[1] + limit]
        return max(0.0, min([REMINDER_S, *(moment - self._clock.now() for moment in moments if moment is not None)]))

    def _make_room(self, wanted: int) -> int:
        if self._limits.capacity is None:
            return 0
        missing = len(self._line) + wanted - self._limits.capacity
        stalest = list(itertools.islice(self._line.finished(), max(0, missing)))
        if missing > 0 and (self._limits.when_full == "block" or len(stalest) < missing):
            raise ValueError(f"{wanted} groups were dispatched into a buffer with room for {wanted - missing}")
        for group in stalest:
            self._line.remove(group)
            self.ledger.drop(group, "capacity")
            self._turnover.count("evicted_capacity")
            _LOG.warning("the buffer is full: group %d, stamped %d, is thrown away", group.number, group.stamp)
        return len(stalest)

    def _evict(self, step: int) -> list[Group]:
        evicts = self._policy.evicts
        stale = list(itertools.takewhile(lambda group: evicts(group.staleness(step)), self._line.finished()))
        for group in stale:
            self._line.remove(group)
            self.ledger.drop(group, "stale")
        return stale

    def _replacement(self, group: Group) -> Lost:
        """What takes the place of a stale group."""
        self._turnover.dropped(group.prompt)
        return Lost(group.prompt if self._policy.requeues else None)

    def _take(self, size: int, step: int) -> tuple[Group, ...] | None:
        """The next batch, or None while it must be waited for."""
        unfinished = self._line.oldest_unfinished()
        if any(self._policy.waits_for(group.staleness(step)) for group in unfinished):
            return None
        groups = tuple(itertools.islice(self._line.finished(in_order=self._policy.in_order), size))
        if len(groups) < size and unfinished:
            return None
        for group in groups:
            self._line.remove(group)
            self.ledger.sample(group)
            self._turnover.trained(group.prompt)
        return groups

    def _raise_failure(self) -> None:
        if self._closed:
            raise RolloutError("the replay buffer was closed while the loop was sampling")
        self._losses.raise_if_fatal()

    def _waiting_for(self, size: int, step: int, evicted: Sequence[int]) -> str:
        oldest = max((group.staleness(step) for group in self._line.oldest_unfinished()), default=None)
        waiting = f", the oldest with S={oldest}" if oldest is not None else ""
        smallest = f", smallest S={min(evicted)}" if evicted else ""
        return (
            f"{self._line.num_finished} of {size} groups sampleable in step {step}, {len(evicted)} evicted{smallest}, "
            f"strategy {self._policy!r}; {self._line.num_running} running, {self._line.num_pending} pending{waiting}"
        )
