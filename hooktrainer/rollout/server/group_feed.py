"""Groups of a replay buffer: claimed when a server has room, answered there, scored and handed in."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Final

from hooktrainer._util.threads import ReportingThread
from hooktrainer.errors import RolloutError
from hooktrainer.ports import Group, ReplayBuffer, Trajectory
from hooktrainer.rollout.engine import GRACE_S
from hooktrainer.rollout.hand_in import HandIn, failure_reason
from hooktrainer.rollout.server.errors import ServerError, ServerGoneError
from hooktrainer.rollout.statistics import Stopwatch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hooktrainer.rollout.decode_batch import Request
    from hooktrainer.rollout.generation import Generator
    from hooktrainer.rollout.server.inference_server import InferenceServer
    from hooktrainer.rollout.server.pool import ServerPool
    from hooktrainer.rollout.statistics import RolloutStats


_TRACK: Final = "servers"
"""The track of all servers in timelines."""


class GroupFeed:
    """Claims groups in a thread of its own; no more than live servers can answer and rewards can score."""

    def __init__(self, pool: ServerPool, buffer: ReplayBuffer, generator: Generator, stats: RolloutStats) -> None:
        self._pool = pool
        self._buffer = buffer
        self._generator = generator
        self._stats = stats
        self._hand_in = HandIn(generator, buffer, stats, _TRACK)
        self._changed = threading.Condition()
        self._open = self._closing = False
        self._active = 0
        """Groups that were claimed and are not handed in."""
        self._stopwatch = Stopwatch()
        self._thread = ReportingThread(self._claim_all, "rollout-feed", pool.loop.fail)
        self._thread.start()

    def open(self) -> None:
        """Claim groups."""
        with self._changed:
            self._open = True
            self._changed.notify_all()

    def hold(self) -> None:
        """Claim no group until `open`."""
        with self._changed:
            self._open = False

    def close(self) -> None:
        """Claim no group any more; those that are claimed are not handed in."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._buffer.close()

    def join(self) -> None:
        """Wait for the thread, once the pool is closed."""
        self._thread.join(GRACE_S)

    def _room(self) -> int:
        """Return the number of groups that can start now."""
        live = self._pool.live
        each = self._pool.options.max_groups
        in_total = each * len(live) + self._generator.score_pool.options.workers
        return min(sum(max(0, each - len(server.groups)) for server in live), in_total - self._active)

    def _ends(self) -> bool:
        return self._closing or self._pool.loop.error is not None

    def _claim_all(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._closing or self._pool.loop.error or (self._open and self._room() > 0)
                )
                idle = not self._active
            mark = self._stats.mark()
            if self._ends() or not self._buffer.count_pending(block=True):
                return
            if idle:
                self._stats.waited(mark, _TRACK)
                self._stopwatch.restart()
            with self._changed:
                groups = self._buffer.claim(max(0, self._room()), block=False) if self._open else ()
                chosen = [(group, self._assign(group)) for group in groups]
            for group, server in chosen:
                self._begin(group, server)

    def _assign(self, group: Group) -> InferenceServer | None:
        """Count a group as one of the server with the fewest groups."""
        self._active += 1
        server = min(self._pool.live, key=lambda server: len(server.groups), default=None)
        if server is not None:
            server.groups.add(group.number)
        return server

    def _begin(self, group: Group, server: InferenceServer | None) -> None:
        try:
            requests = self._generator.requests(group)
        except Exception as error:  # noqa: BLE001 - it fails this group only
            self._fail(group, server, (), error)
            return
        if server is None:
            self._fail(group, server, requests, RolloutError("the server of the group was dropped"))
        else:
            self._pool.loop.begin(self._answer(group, server, requests))

    async def _answer(self, group: Group, server: InferenceServer, requests: Sequence[Request]) -> None:
        answers = [
            asyncio.ensure_future(self._pool.requests.answer(request, server, self._generator.turns))
            for request in requests
        ]
        try:
            await asyncio.gather(*answers)
        except Exception as error:  # noqa: BLE001 - it fails the group or the run
            for answer in answers:
                answer.cancel()
            await asyncio.wait(answers)
            self._fail(group, server, requests, error)
            return
        self._leave(group, server)
        try:
            self._generator.submit(group.prompt, requests).add_done_callback(lambda scores: self._scored(group, scores))
        except Exception as error:  # noqa: BLE001 - the engine cannot score
            self._pool.loop.fail(error)

    def _scored(self, group: Group, scores: Future[list[Trajectory]]) -> None:
        try:
            if not self._closing:
                self._hand_in(group, scores, self._stopwatch.lap)
        except BaseException as error:  # noqa: BLE001 - the loop's thread raises it
            self._pool.loop.fail(error)
        finally:
            self._end_one()

    def _fail(
        self, group: Group, server: InferenceServer | None, requests: Sequence[Request], error: Exception
    ) -> None:
        self._generator.end(requests)
        if isinstance(error, ServerError):
            self._pool.loop.fail(error)
        elif isinstance(error, ServerGoneError) and server is not None:
            self._pool.drop(server, error)
        if server is not None:
            self._leave(group, server)
        died = server is None or isinstance(error, ServerGoneError)
        self._buffer.fail(group, error, "worker_died" if died else failure_reason(error))
        self._end_one()

    def _leave(self, group: Group, server: InferenceServer) -> None:
        with self._changed:
            server.groups.discard(group.number)
            self._changed.notify_all()

    def _end_one(self) -> None:
        with self._changed:
            self._active -= 1
            self._changed.notify_all()
