"""Loop of one worker: claim groups, decode them, and hand them in when they are scored."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING

from hooktrainer._util.places import place_of_user_code
from hooktrainer.ports import Group, GroupSource, Trajectory
from hooktrainer.rollout.hand_in import HandIn, ends_engine, failure_reason
from hooktrainer.rollout.scheduler import Scheduler
from hooktrainer.rollout.statistics import RolloutStats, Stopwatch
from hooktrainer.weight_sync.torn_reads import Fingerprint

if TYPE_CHECKING:
    from hooktrainer.rollout.generation import Generator


class WorkerLoop:
    """Finishes or fails every group that it claims, until it is stopped."""

    def __init__(
        self,
        generator: Generator,
        source: GroupSource,
        stats: RolloutStats,
        stopped: threading.Event,
        *,
        name: str,
        check_fingerprints: Callable[[int, Collection[Fingerprint]], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        """`name` is the track of the worker in timelines.

        `check_fingerprints` gets the number of each complete group; an error that it raises ends the worker.

        `on_failure` gets an error of a thread that scores, after which the run cannot continue.
        """
        self._generator = generator
        self._source = source
        self._stats = stats
        self._name = name
        self._stopped = stopped
        self._check_fingerprints = check_fingerprints
        self._on_failure = on_failure
        self._scheduler = Scheduler(generator)
        self._hand_in = HandIn(generator, source, stats, name)
        self._scoring: dict[int, Future[list[Trajectory]]] = {}
        """The answers of groups that are being scored, by number."""
        self._scored = threading.Condition()
        self._max_scoring = self._scheduler.max_groups + generator.score_pool.options.workers
        self._stopwatch = Stopwatch()

    @property
    def groups(self) -> Sequence[int]:
        """Numbers of the groups that are being generated; may be read by other threads."""
        return self._scheduler.numbers

    def describe_rewards(self, group: int | None = None) -> Sequence[str]:
        """Describe the threads that score a group or reply to its turns, or with None all; for any thread."""
        with self._scored:
            scoring = [one for one in self._scoring.items() if group is None or one[0] == group]
        found = [(number, self._generator.score_pool.thread_of(scores)) for number, scores in scoring]
        found += [one for one in self._scheduler.threads if group is None or one[0] == group]
        return [
            f"{thread.name} is in {place_of_user_code(thread)}, with group {number}"
            for number, thread in found
            if thread
        ]

    def run(self, *, block: bool) -> None:
        """Run until the source is closed or the engine is stopped; without `block`, until no group is pending.

        With `block`, the threads that score groups hand them in. Otherwise this thread waits for each score.
        """
        while not self._stopped.is_set():
            claimed = self._claim(block=block)
            if not claimed and not self._scheduler:
                return
            self._advance(claimed, block=block)
        self._scheduler.abandon()

    def _claim(self, *, block: bool) -> Sequence[Group]:
        """Claim as many groups as can start now; block only if no request is in flight."""
        if self._scheduler and self._generator.weights.paused:
            return ()
        if self._must_wait_for_scores():
            self._source.claim(0, block=False)  # no group can start now
            if self._scheduler:
                return ()
            with self._scored:
                self._scored.wait_for(lambda: not self._must_wait_for_scores())
        room = self._scheduler.room()
        if not room:
            return ()
        if self._scheduler or not block:
            return self._source.claim(room, block=False)
        self._generator.weights.wait_for_resume()
        mark = self._stats.mark()
        claimed = self._source.claim(room)
        self._stats.waited(mark, self._name)
        self._stopwatch.restart()
        return claimed

    def _must_wait_for_scores(self) -> bool:
        return len(self._scoring) >= self._max_scoring

    def _advance(self, claimed: Sequence[Group], *, block: bool) -> None:
        try:
            self._scheduler.add(claimed)
            for group, requests in self._scheduler.step(waits=not block):
                self._check_fingerprints(group.number, {one for request in requests for one in request.fingerprints})
                scores = self._generator.submit(group.prompt, requests)
                if block:
                    self._scheduler.done(group)
                    self._hand_in_later(group, scores)
                else:
                    self._hand_in(group, scores, self._stopwatch.lap)
                    self._scheduler.done(group)
        except BaseException as error:
            for group in self._scheduler.abandon():
                self._source.fail(group, error, failure_reason(error))
            if ends_engine(error):
                raise

    def _hand_in_later(self, group: Group, scores: Future[list[Trajectory]]) -> None:
        """Hand in a group on the thread that scores it."""
        lap = self._stopwatch.lap()
        with self._scored:
            self._scoring[group.number] = scores

        def hand_in(scores: Future[list[Trajectory]]) -> None:
            try:
                if not self._stopped.is_set():
                    self._hand_in(group, scores, lambda: lap)
            except BaseException as error:  # noqa: BLE001 - the loop's thread raises it
                self._on_failure(error)
            finally:
                with self._scored:
                    del self._scoring[group.number]
                    self._scored.notify_all()

        scores.add_done_callback(hand_in)
