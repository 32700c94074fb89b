"""The part of the replay buffer that engines use: they claim groups and report them as finished or failed."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import attrs

from hooktrainer._util.clock import SystemClock
from hooktrainer.errors import RolloutError
from hooktrainer.ports import Clock, FailureReason, Group, Trajectory
from hooktrainer.replay.failures import DROP_REASONS, Failures
from hooktrainer.replay.ledger import Ledger
from hooktrainer.replay.options import ReplayOptions
from hooktrainer.replay.queue import GroupQueue
from hooktrainer.replay.statistics import ReplayStatistics


class BaseGroupSource:
    """Implementation of `hooktrainer.ports.GroupSource` over a queue of groups; thread-safe."""

    def __init__(self, limits: ReplayOptions | None = None, *, clock: Clock | None = None) -> None:
        self._limits = limits or ReplayOptions()
        self._clock = clock or SystemClock()
        self._queue = GroupQueue()
        self._failures = Failures(self._limits.max_failed_groups, self._limits.max_lost_groups)
        self._statistics = ReplayStatistics()
        self._filter: Callable[[Group], bool] = lambda _: True
        self._worker_report: Callable[[int | None], str] = lambda _: ""
        self._timed_out: set[int] = set()  # numbers of groups that an engine may still hand in
        self._closed = False
        self.ledger = Ledger()
        """Fates of all dispatched groups. Read it on the loop's thread."""
        self._lock = threading.RLock()
        self._claimable = threading.Condition(self._lock)
        self._sampleable = threading.Condition(self._lock)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Hold the lock of the buffer: no other thread changes any group until the block ends."""
        with self._lock:
            yield

    def set_filter(self, keep: Callable[[Group], bool]) -> None:
        """Call `keep` with each finished group, and replace the group if it returns False.

        It is called under the lock, by any thread. An error that it raises is raised by `sample`, and ends the run.
        """
        with self._lock:
            self._filter = keep

    def set_worker_report(self, report: Callable[[int | None], str]) -> None:
        """Set the function that describes the worker of a running group, or with None all workers that are busy."""
        with self._lock:
            self._worker_report = report

    def count_pending(self, block: bool = False) -> int:
        """Return the number of groups that can be claimed.

        With `block`, wait until there is one. Return 0 once the buffer is closed.
        """
        with self._lock:
            if block:
                self._claimable.wait_for(lambda: self._queue.num_pending or self._closed)
            return 0 if self._closed else self._queue.num_pending

    def claim(self, limit: int, block: bool = True) -> Sequence[Group]:
        """Return up to `limit` pending groups to generate, oldest first.

        Block until there is one, unless `block` is False. Return nothing once the buffer is closed. The timeout of a
        group starts here.
        """
        with self._lock:
            if not (pending := self.count_pending(block)):
                return ()
            groups = self._queue.claim(min(limit, pending), self._clock.now())
            if self._limits.group_timeout_s is not None:
                self._sampleable.notify_all()  # `sample` has to wake for the new deadline
            return groups

    def finish(self, group: Group, trajectories: Sequence[Trajectory] | None) -> None:
        """Hand in the answers of a claimed group; never blocks.

        No answer at all is a failure, and so is an answer whose versions descend.
        """
        if not trajectories:
            self.fail(group, RolloutError(f"the engine handed in {trajectories!r} instead of answers"))
            return
        if descending := [trajectory for trajectory in trajectories if trajectory.span < 1]:
            versions = descending[0].versions
            found = f"an answer whose versions descend, from {versions[0]} to {versions[-1]}"
            self.fail(group, RolloutError(f"the engine handed in {found}"))
            return
        with self._lock:
            if self._is_expected(group):
                complete = attrs.evolve(group, trajectories=tuple(trajectories))
                self.ledger.finish(complete)  # first: if it raises, the group is still running
                try:
                    keep = self._filter(complete)
                except BaseException as error:  # noqa: BLE001 - raised by `sample`, on the loop's thread
                    self._drop(complete, "error")
                    self._failures.add_filter_error(complete, error)
                else:
                    self._statistics.generated(self._clock.now() - self._queue.finish(complete))
                    if not keep:
                        self._queue.remove(complete)
                        self.ledger.drop(complete, "no_signal")
                        self._failures.replace_filtered()
                self._sampleable.notify_all()

    def fail(self, group: Group, error: BaseException, reason: FailureReason = "error") -> None:
        """Report that a claimed group could not be generated.

        It is replaced. Beyond the limit for failed groups, its error is raised by `sample`.
        """
        with self._lock:
            if self._is_expected(group):
                self._drop(group, reason)
                self._failures.add(group, error, reason)
                self._sampleable.notify_all()

    def close(self) -> None:
        """Wake every waiting thread; no group can be claimed afterwards."""
        with self._lock:
            self._closed = True
            self._claimable.notify_all()
            self._sampleable.notify_all()

    def _drop(self, group: Group, reason: FailureReason) -> None:
        """Remove a running group that failed."""
        self._queue.remove(group)
        self.ledger.drop(group, DROP_REASONS[reason])

    def _is_expected(self, group: Group) -> bool:
        """Return whether the group is running; only count a group that timed out before it was handed in."""
        if self._queue.is_running(group):
            return True
        if group.number not in self._timed_out:
            raise ValueError(f"group {group.number} is not running: it was never claimed, or was handed in before")
        self._timed_out.remove(group.number)
        self._statistics.count("handed_in_late")
        return False

    def _workers(self, number: int | None = None) -> str:
        """Return the report of the worker of a group, or of all workers that are busy, as the end of a sentence."""
        report = self._worker_report(number)
        return f"; {report}" if report else ""

    def _fail_timed_out(self) -> None:
        """Fail the running groups that were claimed longer than `group_timeout_s` ago."""
        limit = self._limits.group_timeout_s
        if limit is None:
            return
        latest = self._clock.now() - limit
        for group, _ in list(itertools.takewhile(lambda running: running[1] <= latest, self._queue.running())):
            late = f"group {group.number} ran longer than replay.group_timeout_s = {limit:g}"
            error = RolloutError(f"{late}{self._workers(group.number)}")
            self.fail(group, error, "timeout")
            self._timed_out.add(group.number)
