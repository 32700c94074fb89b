"""Loop of one worker: claim groups, decode them, score the answers and hand them in."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Collection, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Final

from hooktrainer.errors import RolloutError, SyncError
from hooktrainer.ports import FailureReason, Group, GroupSource, Trajectory
from hooktrainer.rollout.scheduler import Scheduler
from hooktrainer.rollout.statistics import RolloutStats
from hooktrainer.weight_sync.torn_reads import Fingerprint

if TYPE_CHECKING:
    from hooktrainer.rollout.decode_batch import Request
    from hooktrainer.rollout.generation import Generator

CANCELLED: Final = (asyncio.CancelledError, concurrent.futures.CancelledError)


def failure_reason(error: BaseException) -> FailureReason:
    """Return the reason to report for a group whose generation raised this error."""
    if isinstance(error, CANCELLED):
        return "cancelled"
    return "timeout" if isinstance(error, TimeoutError) else "error"


class WorkerLoop:
    """Finishes or fails every group that it claims, until it is stopped."""

    def __init__(
        self,
        generator: Generator,
        source: GroupSource,
        stats: RolloutStats,
        stopped: threading.Event,
        check_fingerprints: Callable[[int, Collection[Fingerprint]], None],
    ) -> None:
        """`check_fingerprints` gets the number of each complete group; an error that it raises ends the worker."""
        self._generator = generator
        self._source = source
        self._stats = stats
        self._stopped = stopped
        self._check_fingerprints = check_fingerprints
        self._scheduler = Scheduler(generator)
        self._counted_until = perf_counter()

    @property
    def groups(self) -> Sequence[int]:
        """Numbers of the groups that it has claimed and not handed in; may be read by other threads."""
        return self._scheduler.numbers

    def run(self, *, block: bool) -> None:
        """Run until the source is closed or the engine is stopped; without `block`, until no group is pending."""
        while not self._stopped.is_set():
            claimed = self._claim(block=block)
            if not claimed and not self._scheduler:
                return
            self._advance(claimed)
        self._scheduler.abandon()

    def _claim(self, *, block: bool) -> Sequence[Group]:
        """Claim as many groups as can start now; block only if no request is in flight."""
        if self._scheduler and self._generator.weights.paused:
            return ()
        room = self._scheduler.room()
        if not room:
            return ()
        if self._scheduler or not block:
            return self._source.claim(room, block=False)
        self._generator.weights.wait_for_resume()
        mark = self._stats.mark()
        claimed = self._source.claim(room)
        self._stats.waited(mark)
        self._counted_until = perf_counter()
        return claimed

    def _advance(self, claimed: Sequence[Group]) -> None:
        try:
            self._scheduler.add(claimed)
            complete = self._scheduler.step()
            if complete:
                self._source.claim(0, block=False)  # no group can start while these are scored
            for group, requests in complete:
                self._hand_in(group, requests)
        except BaseException as error:
            for group in self._scheduler.abandon():
                self._source.fail(group, error, failure_reason(error))
            if isinstance(error, SyncError) or not isinstance(error, (Exception, *CANCELLED)):
                raise

    def _hand_in(self, group: Group, requests: Sequence[Request]) -> None:
        """Score and finish a group, or fail it; an error of one score fails no other group."""
        self._check_fingerprints(group.number, {one for request in requests for one in request.fingerprints})
        try:
            answers = self._score(group, requests)
        except (Exception, *CANCELLED) as error:  # noqa: BLE001 - the buffer raises it, or replaces the group
            self._source.fail(group, error, failure_reason(error))
        else:
            now = perf_counter()
            self._stats.generated(
                now - self._counted_until, len(answers), sum(len(answer.tokens) for answer in answers)
            )
            self._counted_until = now
            self._source.finish(group, answers)
        self._scheduler.done(group)

    def _score(self, group: Group, requests: Sequence[Request]) -> Sequence[Trajectory]:
        answers: Sequence[Trajectory] | None = self._generator.trajectories(group.prompt, requests)
        expected = self._generator.options.n
        if answers is None or len(answers) != expected:
            found = "nothing" if answers is None else f"{len(answers)} answers"
            raise RolloutError(f"the engine generated {found} instead of {expected} answers to {group.prompt.text!r}")
        return answers
