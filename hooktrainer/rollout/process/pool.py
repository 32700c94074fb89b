"""The worker processes of an engine: kept alive, given groups, told of weights, ended."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.connection import wait
from time import monotonic
from typing import TYPE_CHECKING, Final

from hooktrainer.errors import RolloutError
from hooktrainer.metrics import Sum
from hooktrainer.ports import Floats, Group, ReplayBuffer, Tokens
from hooktrainer.rollout.process.broadcast import Broadcast
from hooktrainer.rollout.process.handle import WorkerHandle
from hooktrainer.rollout.process.messages import (
    Done,
    Failed,
    Finished,
    PackedError,
    Pause,
    Ready,
    Release,
    Resume,
    Room,
    Score,
    Use,
    Work,
)
from hooktrainer.rollout.stats import RolloutStats
from hooktrainer.weight_sync.torn_reads import TornReadDetector

if TYPE_CHECKING:
    from torch import Tensor

_LOG: Final = logging.getLogger("hooktrainer")
STOP_S: Final = 2.0
"""Seconds to end after the connection was closed, before SIGKILL."""


class WorkerPool:
    """Two threads: one claims groups and gives them to workers, one listens to workers and sees them die."""

    def __init__(
        self,
        config: bytes,
        sets: Sequence[Tensor],
        *,
        workers: int,
        max_restarts: int,
        sync_timeout_s: float,
        stats: RolloutStats,
        detector: TornReadDetector,
    ) -> None:
        self._detector = detector
        self._config = config
        self._sets = sets
        self._num_workers = workers
        self._max_restarts = max_restarts
        self._stats = stats
        self._workers: list[WorkerHandle] = []
        self._threads: list[threading.Thread] = []
        self._buffer: ReplayBuffer | None = None
        self._in_use = (0, -1)
        self._paused = False
        self._closing = False
        self._changed = threading.Condition()
        self._asking = Broadcast(self._changed, sync_timeout_s, lambda: self.died)
        self.died: BaseException | None = None
        """Why nothing is generated any more."""

    def start(self, buffer: ReplayBuffer) -> None:
        """Spawn the workers; groups are claimed as they get ready."""
        self._buffer, self._closing = buffer, False
        for number in range(self._num_workers):
            self._workers.append(WorkerHandle(number, 0, self._config, self._sets))
        for task in (self._feed, self._listen):
            thread = threading.Thread(
                target=self._guarded, args=(task, buffer), name=f"rollout{task.__name__}", daemon=True
            )
            thread.start()
            self._threads.append(thread)

    def release(self, place: int) -> None:
        """Return once no worker reads this set, which is not the one in use."""
        self._asking.hurried = False
        self._ask(partial(Release, place=place), "end answers that began two versions ago")

    def hurry(self) -> None:
        """A sync is being undone: until the next `release`, wait for no worker longer than a moment."""
        self._asking.hurried = True

    def pause(self) -> None:
        """Return once no worker begins an answer, until `resume`."""
        self._paused = True
        self._ask(Pause, "pause")

    def use(self, place: int, version: int) -> None:
        """Return once every worker gives this set to new answers."""
        self._in_use = (place, version)
        self._ask(partial(Use, place=place, version=version), f"use version {version}")

    def score(self, tokens: Tokens) -> Sequence[Floats]:
        """What every worker that is set up says of a text, with the set in use."""
        scores = []
        for worker in self._ask(partial(Score, tokens=tokens), "score the canary"):
            if isinstance(worker.scores, PackedError):
                raise RolloutError(f"{worker} could not score the canary") from worker.scores.unpack()
            if worker.scores is not None:  # who died meanwhile has said nothing
                scores.append(worker.scores)
        return scores

    def resume(self) -> None:
        """Return once every worker begins answers again."""
        self._paused = False
        self._ask(Resume, "go on")

    def close(self) -> None:
        """End every process and thread; who does not end by itself is killed."""
        with self._changed:
            self._closing = True
            workers, self._workers = self._workers, []
            self._changed.notify_all()
        if self._buffer is not None:
            self._buffer.close()
        for worker in workers:
            if worker.ready:
                worker.hang_up()
            else:  # it does not listen yet, and has nothing to lose
                worker.kill()
        _join(workers, STOP_S)
        for worker in workers:
            if not worker.is_dead():
                _LOG.warning("%s did not end by itself within %g s; sending SIGKILL", worker, STOP_S)
                worker.kill()
        _join(workers, None)
        while self._threads:
            self._threads.pop().join()
        for worker in workers:
            worker.close()
        self._buffer = None

    def raise_if_died(self) -> None:
        """Raise the error that ended the workers, if one did."""
        if self.died is not None:
            raise RolloutError(f"nothing is generated any more: {self.died}") from self.died

    def _ask(self, question: Callable[[int], object], what: str) -> Sequence[WorkerHandle]:
        asked = self._asking.ask(self._workers, question, what)
        self.raise_if_died()
        return asked

    def _guarded(self, task: Callable[[ReplayBuffer], None], buffer: ReplayBuffer) -> None:
        try:
            task(buffer)
        except BaseException as error:  # noqa: BLE001 - raised again on the loop's thread, which the close wakes
            with self._changed:
                self.died = self.died or error
                self._changed.notify_all()
            buffer.close()

    def _feed(self, buffer: ReplayBuffer) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closing or self.died or self._room())
                room = self._room()
            if self._closing or self.died or not (groups := buffer.claim(room)):
                return
            self._deal(groups)

    def _room(self) -> int:
        return sum(max(0, worker.room) for worker in self._workers)

    def _deal(self, groups: Sequence[Group]) -> None:
        """Each to the worker with most room; if all died since there was some, to the first that is there again."""
        shares: dict[WorkerHandle, list[Group]] = {}
        with self._changed:
            self._changed.wait_for(lambda: self._closing or self.died or any(m.ready for m in self._workers))
            ready = [worker for worker in self._workers if worker.ready]
            for group in groups if ready else ():
                worker = max(ready, key=lambda worker: worker.room)
                worker.give(group)
                shares.setdefault(worker, []).append(group)
        for worker, share in shares.items():
            worker.send(Work(share))  # in one piece, to be read in one batch

    def _listen(self, buffer: ReplayBuffer) -> None:
        live = list(self._workers)
        while live:
            ready = wait([end for worker in live for end in worker.ends()])
            for worker in [worker for worker in live if any(end in ready for end in worker.ends())]:
                dead = worker.is_dead()  # asked first, so that all it ever sent is received
                for message in worker.received():
                    self._handle(worker, message, buffer)
                if dead:
                    live.remove(worker)
                    live += self._replacement(worker, buffer)

    def _handle(self, worker: WorkerHandle, message: object, buffer: ReplayBuffer) -> None:
        match message:
            case Finished(number, trajectories, metrics, fingerprints):
                self._detector.check(number, fingerprints)
                self._stats.record(metrics)
                buffer.finish(worker.groups.pop(number), trajectories)
            case Failed(None, error):
                raise RolloutError(f"{worker} cannot go on") from error.unpack()
            case Failed(int(number), error, reason):
                buffer.fail(worker.groups.pop(number), error.unpack(), reason)
            case _:
                with self._changed:
                    self._note(worker, message)
                    self._changed.notify_all()

    def _note(self, worker: WorkerHandle, message: object) -> None:
        match message:
            case Ready():
                # With the lock held, so that nothing newer comes before it.
                worker.send(Use(0, *self._in_use))
                worker.send(Pause(0) if self._paused else Resume(0))
                worker.ready = True
            case Room():
                worker.told = message
            case Done(ticket, scores):
                worker.scores = scores
                worker.tickets.discard(ticket)

    def _replacement(self, worker: WorkerHandle, buffer: ReplayBuffer) -> Sequence[WorkerHandle]:
        """Give up what a dead worker had in work, and start another in its place."""
        how, killed = worker.ended(), worker.ready or worker.was_killed
        with self._changed:
            lost = worker.give_up()
            self._changed.notify_all()
        if self._closing:
            return ()
        for group in lost:
            error = RolloutError(f"{worker} {how} while it answered group {group.number}")
            buffer.fail(group, error, "worker_died")
        if worker.restarts == self._max_restarts:
            raise RolloutError(f"{worker} {how} after {worker.restarts} restarts. {_advice(killed=killed)}")
        _LOG.warning("%s %s; it had %d groups in work and is started anew", worker, how, len(lost))
        self._stats.record({"rollout/restarts": Sum(1)})
        with self._changed:
            if self._closing:
                return ()
            another = WorkerHandle(worker.number, worker.restarts + 1, self._config, self._sets)
            self._workers[worker.number] = another
        return (another,)


def _join(workers: Sequence[WorkerHandle], seconds: float | None) -> None:
    """Wait until all are dead, for so long at most."""
    deadline = None if seconds is None else monotonic() + seconds
    for worker in workers:
        wait([worker.process.sentinel], None if deadline is None else max(0.0, deadline - monotonic()))


def _advice(*, killed: bool) -> str:
    if killed:
        return "If nobody killed it, the system was out of memory: fewer `workers` or `slots` need less."
    return "It never got ready: a script that trains has to do so under `if __name__ == '__main__':`."
