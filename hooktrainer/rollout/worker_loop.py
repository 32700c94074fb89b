"""The work of one worker: claim groups, decode, hand in."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Collection, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Final, Protocol

from hooktrainer.errors import RolloutError, SyncError
from hooktrainer.ports import FailureReason, Group, Trajectory
from hooktrainer.rollout.scheduler import Scheduler
from hooktrainer.rollout.stats import RolloutStats
from hooktrainer.weight_sync.torn_reads import Fingerprint

if TYPE_CHECKING:
    from hooktrainer.rollout.decode_batch import Request
    from hooktrainer.rollout.generation import Generator

CANCELLED: Final = (asyncio.CancelledError, concurrent.futures.CancelledError)


class Source(Protocol):
    """Where groups come from and go back to: the part of a replay buffer that a worker sees."""

    def claim(self, limit: int, block: bool = True) -> Sequence[Group]:
        """Take groups to generate; empty once closed, and without `block` when none is pending."""
        ...

    def finish(self, group: Group, trajectories: Sequence[Trajectory]) -> None:
        """Hand in the answers of a claimed group."""
        ...

    def fail(self, group: Group, error: BaseException, reason: FailureReason = "error") -> None:
        """Say that a claimed group could not be generated."""
        ...


def reason_of(error: BaseException) -> FailureReason:
    """What an exception means for its group."""
    if isinstance(error, CANCELLED):
        return "cancelled"
    return "timeout" if isinstance(error, TimeoutError) else "error"


class WorkerLoop:
    """One worker's loop; until it is stopped, every group that it claimed is finished or failed."""

    def __init__(
        self,
        generator: Generator,
        source: Source,
        stats: RolloutStats,
        stopped: threading.Event,
        detector: Callable[[int, Collection[Fingerprint]], None],
    ) -> None:
        """`witness` hears of every group from which weights it was sampled; what it raises ends the worker."""
        self._detector = detector
        self._generator = generator
        self._source = source
        self._stats = stats
        self._stopped = stopped
        self._scheduler = Scheduler(generator)
        self._counted_until = perf_counter()

    def run(self, *, block: bool) -> None:
        """Serve until the source is closed or the engine is stopped; without `block`, until nothing is pending."""
        while not self._stopped.is_set():
            claimed = self._claim(block=block)
            if not claimed and not self._scheduler:
                return
            self._advance(claimed)
        self._scheduler.abandon()  # nobody waits for it any more

    def _claim(self, *, block: bool) -> Sequence[Group]:
        room = self._scheduler.room()
        if not room:
            return ()
        if self._scheduler or not block:
            return self._source.claim(room, block=False)
        mark = self._stats.mark()
        claimed = self._source.claim(room)
        self._stats.waited(mark)
        self._counted_until = perf_counter()
        return claimed

    def _advance(self, claimed: Sequence[Group]) -> None:
        try:
            self._scheduler.add(claimed)
            for group, requests in self._scheduler.step():
                self._hand_in(group, requests)
        except BaseException as error:
            for group in self._scheduler.abandon():
                self._source.fail(group, error, reason_of(error))
            if isinstance(error, SyncError) or not isinstance(error, (Exception, *CANCELLED)):
                raise

    def _hand_in(self, group: Group, requests: Sequence[Request]) -> None:
        """Score and finish a group, or fail it: an answer that cannot be scored costs no other group."""
        self._detector(group.number, {fingerprint for request in requests for fingerprint in request.fingerprints})
        try:
            answers = self._whole(group, requests)
        except (Exception, *CANCELLED) as error:  # noqa: BLE001 - the buffer raises it, or replaces the group
            self._source.fail(group, error, reason_of(error))
        else:
            now = perf_counter()
            self._stats.generated(
                now - self._counted_until, len(answers), sum(len(answer.tokens) for answer in answers)
            )
            self._counted_until = now
            self._source.finish(group, answers)
        self._scheduler.done(group)

    def _whole(self, group: Group, requests: Sequence[Request]) -> Sequence[Trajectory]:
        answers: Sequence[Trajectory] | None = self._generator.trajectories(requests)
        wanted = self._generator.options.n
        if answers is None or len(answers) != wanted:
            found = "nothing" if answers is None else f"{len(answers)} answers"
            raise RolloutError(f"early return: {found} instead of {wanted} answers to {group.prompt.text!r}")
        return answers
