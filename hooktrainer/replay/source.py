"""The side of the replay buffer that engines see: groups are claimed, and come back finished or failed."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import attrs

from hooktrainer._util.clock import SystemClock
from hooktrainer.errors import RolloutError
from hooktrainer.ports import Clock, FailureReason, Group, Trajectory
from hooktrainer.replay.failures import DROPPED_AS, Losses
from hooktrainer.replay.ledger import Ledger
from hooktrainer.replay.options import ReplayOptions
from hooktrainer.replay.queue import Line
from hooktrainer.replay.statistics import Turnover


class Intake:
    """Thread-safe and group-atomic; what is handed in waits in the line to be sampled."""

    def __init__(self, limits: ReplayOptions | None = None, *, clock: Clock | None = None) -> None:
        self._limits = limits or ReplayOptions()
        self._clock = clock or SystemClock()
        self._line = Line()
        self._losses = Losses(self._limits.max_failed_groups, self._limits.max_lost_groups)
        self._turnover = Turnover()
        self._filter: Callable[[Group], bool] = lambda _: True
        self._given_up: set[int] = set()
        self._closed = False
        self.ledger = Ledger()
        """The fate of every dispatch; read it on the loop's thread."""
        self._lock = threading.RLock()
        self._claimable = threading.Condition(self._lock)
        self._sampleable = threading.Condition(self._lock)

    @contextmanager
    def still(self) -> Iterator[None]:
        """Nothing comes in or goes out until the block ends, but for what its own thread does."""
        with self._lock:
            yield

    def set_filter(self, wanted: Callable[[Group], bool]) -> None:
        """Replace each group of which this is False when it is finished; called under the lock, by any thread."""
        with self._lock:
            self._filter = wanted

    def claim(self, limit: int, block: bool = True) -> Sequence[Group]:
        """Take up to `limit` pending groups to generate, oldest first; blocks until there is one; empty once closed."""
        with self._lock:
            if block:
                self._claimable.wait_for(lambda: self._line.num_pending or self._closed)
            return () if self._closed else self._line.claim(limit, self._clock.now())

    def finish(self, group: Group, trajectories: Sequence[Trajectory] | None) -> None:
        """Hand in the answers of a claimed group; never blocks. None or no answer at all is a failure."""
        if not trajectories:
            self.fail(group, RolloutError(f"the engine handed in {trajectories!r} instead of answers"))
            return
        with self._lock:
            if self._still_runs(group):
                whole = attrs.evolve(group, trajectories=tuple(trajectories))
                self._turnover.generated(self._clock.now() - self._line.finish(whole))
                self.ledger.finish(whole)
                if not self._filter(whole):
                    self._line.remove(whole)
                    self.ledger.drop(whole, "no_signal")
                    self._losses.replace()
                self._sampleable.notify_all()

    def fail(self, group: Group, error: BaseException, reason: FailureReason = "error") -> None:
        """Say that a claimed group could not be generated; over the budget for that, the error leaves `sample`."""
        with self._lock:
            if self._still_runs(group):
                self._line.remove(group)
                self.ledger.drop(group, DROPPED_AS[reason])
                self._losses.add(group, error, reason)
                self._sampleable.notify_all()

    def close(self) -> None:
        """Wake everyone who waits; nothing is claimed any more."""
        with self._lock:
            self._closed = True
            self._claimable.notify_all()
            self._sampleable.notify_all()

    def _still_runs(self, group: Group) -> bool:
        """Whether a group that is handed in is wanted; one that was given up before is only counted."""
        if self._line.runs(group):
            return True
        if group.number not in self._given_up:
            raise ValueError(f"group {group.number} is not running: it was never claimed, or was handed in before")
        self._given_up.remove(group.number)
        self._turnover.count("handed_in_late")
        return False

    def _give_up_late(self) -> None:
        limit = self._limits.group_timeout_s
        if limit is None:
            return
        latest = self._clock.now() - limit
        for group, _ in list(itertools.takewhile(lambda running: running[1] <= latest, self._line.running())):
            error = RolloutError(f"group {group.number} ran longer than replay.group_timeout_s = {limit:g}")
            self.fail(group, error, "timeout")
            self._given_up.add(group.number)
