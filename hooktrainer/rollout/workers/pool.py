"""Pool of workers: starts and restarts them, distributes groups, and forwards the calls of a weight sync."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from multiprocessing.connection import wait
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, Any, Final

from hooktrainer._util.threads import ReportingThread, failure_of
from hooktrainer.errors import HookTrainerError, RolloutError, line_of
from hooktrainer.metrics import Sum
from hooktrainer.ports import Floats, Group, ReplayBuffer, Tokens
from hooktrainer.rollout.engine import listed_groups
from hooktrainer.rollout.statistics import RolloutStats
from hooktrainer.rollout.workers.broadcast import Broadcast
from hooktrainer.rollout.workers.handle import SpawnWorker, WorkerHandle
from hooktrainer.rollout.workers.messages import (
    Abandoned,
    Acknowledged,
    Capacity,
    Generate,
    GroupFailed,
    GroupFinished,
    PackedError,
    Pause,
    Ready,
    Release,
    Resume,
    Score,
    Stage,
    Use,
    Warned,
    WorkerFailed,
)
from hooktrainer.weight_sync.torn_reads import TornReadDetector

if TYPE_CHECKING:
    from hooktrainer.ports import Weights
    from hooktrainer.rollout.workers.staging import WeightStaging

_LOG: Final = logging.getLogger("hooktrainer")
STOP_S: Final = 2.0
"""Seconds between the request to end and SIGKILL."""


class WorkerPool:
    """Runs two threads: one claims groups and sends them to workers, one receives messages and detects deaths."""

    def __init__(
        self,
        spawn: SpawnWorker,
        staging: WeightStaging,
        *,
        workers: int,
        max_restarts: int,
        sync_timeout_s: float,
        stats: RolloutStats,
        detector: TornReadDetector,
    ) -> None:
        self._detector = detector
        self._spawn = spawn
        self._staging = staging
        self._num_workers = workers
        self._max_restarts = max_restarts
        self._stats = stats
        self._workers: list[WorkerHandle] = []
        self._threads: list[threading.Thread] = []
        self._buffer: ReplayBuffer | None = None
        self._in_use = (0, -1)
        self._paused = False
        self._any_ready = False
        self._closing = False
        self._changed = threading.Condition()
        self._broadcast = Broadcast(self._changed, sync_timeout_s, lambda: self.error)
        self.error: HookTrainerError | None = None
        """The error that ended generation."""
        self._raised = False

    def start(self, buffer: ReplayBuffer) -> None:
        """Spawn the workers; groups are claimed once workers are ready."""
        self._staging.open()
        self._buffer, self._closing = buffer, False
        for number in range(self._num_workers):
            self._workers.append(self._spawn(number, 0))
        for task in (self._feed, self._listen):
            fail = partial(self._fail, buffer)
            thread = ReportingThread(partial(task, buffer), f"rollout{task.__name__}", fail)
            thread.start()
            self._threads.append(thread)

    def release(self, index: int) -> None:
        """Return once no worker reads this set, which is not the one in use."""
        self._broadcast.undoing = False
        self._send(partial(Release, index=index), "finish answers that started two versions ago")
        if self._buffer is not None:
            self._staging.discard(index)

    def stage(self, index: int, weights: Weights) -> Sequence[Mapping[str, int]]:
        """Copy weights into this set of every worker; return the checksums of each copy."""
        if self._buffer is None or (bucket := self._staging.add(index, weights)) is None:
            return ()
        return self._replies(partial(Stage, index=index, bucket=bucket), "copy the weights")

    def limit_waits(self) -> None:
        """Wait only briefly for each worker until the next `release`, because a failed sync is being undone."""
        self._broadcast.undoing = True

    def pause(self) -> None:
        """Return once no worker can start a request, until `resume`."""
        self._paused = True
        self._send(Pause, "pause")

    def use(self, index: int, version: int) -> None:
        """Return once every worker uses this set for new requests."""
        self._in_use = (index, version)
        self._send(partial(Use, index=index, version=version), f"use version {version}")

    def score(self, tokens: Tokens) -> Sequence[Floats]:
        """Return the log-probabilities of a text from every worker that is ready, with the set in use."""
        return self._replies(partial(Score, tokens=tokens), "score the canary")

    def describe_workers(self, group: int | None) -> str:
        """Describe the worker of a group, or with None all workers that have groups; takes no lock."""
        workers = [(worker, list(worker.groups)) for worker in list(self._workers)]
        busy = [(worker, own) for worker, own in workers if (own if group is None else group in own)]
        chosen = busy or (workers if group is None else [])
        return ", ".join(
            f"{worker} {worker.state}, with {listed_groups(own)}; {worker.last_request}" for worker, own in chosen
        )

    def resume(self) -> None:
        """Return once every worker starts requests again."""
        self._paused = False
        self._send(Resume, "resume")

    def close(self) -> None:
        """End every worker and thread; a worker that does not return in time is killed.

        Raises the error that ended generation if it was not raised before.
        """
        with self._changed:
            self._closing = True
            workers, self._workers = self._workers, []
            self._changed.notify_all()
        if self._buffer is not None:
            self._buffer.close()
        for worker in workers:
            if worker.ready:
                worker.hang_up()
            else:  # it does not read messages yet
                worker.kill()
        _join(workers, STOP_S)
        for worker in workers:
            if not worker.is_dead():
                _LOG.warning("%s did not return within %g s; sending SIGKILL", worker, STOP_S)
                worker.kill()
        _join(workers, None)
        while self._threads:
            self._threads.pop().join()
        for worker in workers:
            worker.close()
        if self._buffer is not None:
            self._staging.close()
        self._buffer = None
        if not self._raised:  # a thread failed after the last sample
            self.raise_if_failed()

    def raise_if_failed(self) -> None:
        """Raise the error that ended generation, if there is one."""
        if self.error is not None:
            self._raised = True
            raise RolloutError(f"the rollout workers have failed: {self.error}") from self.error

    def _send(self, message_of: Callable[[int], object], task: str) -> Sequence[WorkerHandle]:
        asked = self._broadcast.send(self._workers, message_of, task)
        self.raise_if_failed()
        return asked

    def _replies(self, message_of: Callable[[int], object], task: str) -> Sequence[Any]:
        replies = []
        for worker in self._send(message_of, task):
            if isinstance(worker.reply, PackedError):
                raise RolloutError(f"{worker} could not {task}") from worker.reply.unpack()
            if worker.reply is not None:  # a worker that died meanwhile has not replied
                replies.append(worker.reply)
        return replies

    def _fail(self, buffer: ReplayBuffer, error: BaseException) -> None:
        with self._changed:
            self.error = self.error or failure_of(error, RolloutError)
            self._changed.notify_all()
        buffer.close()  # wakes the loop

    def _feed(self, buffer: ReplayBuffer) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closing or self.error or self._free_capacity())
            if self._closing or self.error or not buffer.count_pending(block=True):
                return
            self._distribute(buffer)

    def _free_capacity(self) -> int:
        return sum(max(0, worker.free_capacity) for worker in self._workers)

    def _distribute(self, buffer: ReplayBuffer) -> None:
        """Claim the groups that can start now, and send each one to the worker with the most free capacity."""
        shares: dict[WorkerHandle, list[Group]] = {}
        with self._changed:
            for group in buffer.claim(self._free_capacity(), block=False):
                worker = max(self._workers, key=lambda worker: worker.free_capacity)
                worker.assign(group)
                shares.setdefault(worker, []).append(group)
        for worker, share in shares.items():
            worker.send(Generate(share))  # in one message, to be prefilled in one batch

    def _listen(self, buffer: ReplayBuffer) -> None:
        live = list(self._workers)
        while live:
            ready = wait([end for worker in live for end in worker.waitables()])
            for worker in [worker for worker in live if any(end in ready for end in worker.waitables())]:
                if dead := worker.is_dead():  # asked before reading, so that no message is missed
                    worker.sever()
                for message in worker.received():
                    self._handle(worker, message, buffer)
                if dead:
                    live.remove(worker)
                    live += self._replacement(worker, buffer)

    def _handle(self, worker: WorkerHandle, message: object, buffer: ReplayBuffer) -> None:
        match message:
            case GroupFinished(number, trajectories, metrics, fingerprints, spans, sent):
                self._detector.check(number, fingerprints)
                self._stats.record(metrics)
                self._stats.timeline.extend(worker.spans.converted(spans, sent, perf_counter()))
                buffer.finish(worker.groups.pop(number), trajectories)
            case WorkerFailed(error, thread):
                cause = error.unpack()
                raise RolloutError(f"{worker} cannot continue: its thread {thread} failed: {line_of(cause)}") from cause
            case Abandoned() | Warned():
                _LOG.warning("%s", message.describe(str(worker), listed_groups(list(worker.groups))))
            case GroupFailed(number, error, reason):
                buffer.fail(worker.groups.pop(number), error.unpack(), reason)
            case _:
                with self._changed:
                    self._note(worker, message)
                    self._changed.notify_all()

    def _note(self, worker: WorkerHandle, message: object) -> None:
        match message:
            case Ready():
                # The lock is held, so that no newer message is sent before these.
                for index, bucket in self._staging.buckets():
                    worker.send(Stage(0, index, bucket))
                worker.send(Use(0, *self._in_use))
                worker.send(Pause(0) if self._paused else Resume(0))
                worker.ready = self._any_ready = True
            case Capacity():
                worker.capacity = message
            case Acknowledged(0, PackedError() as error):
                raise RolloutError(f"{worker} could not copy the weights") from error.unpack()
            case Acknowledged(ticket, reply):
                if ticket in worker.tickets:
                    worker.reply = reply
                worker.tickets.discard(ticket)

    def _replacement(self, worker: WorkerHandle, buffer: ReplayBuffer) -> Sequence[WorkerHandle]:
        """Fail the groups of a dead worker, and start another worker in its place."""
        how = worker.exit_description()
        killed, advice = worker.ready or worker.was_killed, worker.advice
        with self._changed:
            lost = worker.abandon()
            self._changed.notify_all()
        if self._closing:
            return ()
        worker.raise_if_unwatched()
        for group in lost:
            error = RolloutError(f"{worker} {how} while it answered group {group.number}")
            buffer.fail(group, error, "worker_died")
        hopeless = not killed and not self._any_ready  # the next one would import the same modules
        if hopeless or worker.restarts == self._max_restarts:
            raise RolloutError(f"{worker} {how} after {worker.restarts} restarts. {advice}")
        _LOG.warning("%s %s with %d groups in flight and is restarted", worker, how, len(lost))
        self._stats.record({"rollout/restarts": Sum(1)})
        with self._changed:
            if self._closing:
                return ()
            another = self._spawn(worker.number, worker.restarts + 1)
            self._workers[worker.number] = another
        return (another,)


def _join(workers: Sequence[WorkerHandle], seconds: float | None) -> None:
    """Wait until all workers are dead, for at most this many seconds."""
    deadline = None if seconds is None else monotonic() + seconds
    for worker in workers:
        worker.is_dead(None if deadline is None else max(0.0, deadline - monotonic()))
