"""Worker: handles messages of the engine, while another thread generates."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence
from functools import partial
from time import monotonic, perf_counter
from typing import Final

import torch
from torch import Tensor

from hooktrainer._util.forks import Original
from hooktrainer._util.places import place_of_thread, place_of_user_code
from hooktrainer._util.threads import ReportingThread
from hooktrainer._util.timeline import KeptTimeline
from hooktrainer.ports import FailureReason, Floats, Group, Tokens, Trajectory
from hooktrainer.rollout.generation import Generator
from hooktrainer.rollout.statistics import RolloutStats
from hooktrainer.rollout.worker_loop import WorkerLoop
from hooktrainer.rollout.workers.flat_layout import use_tensors
from hooktrainer.rollout.workers.messages import (
    WORKER,
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
    Use,
    Warned,
    WorkerConfig,
    WorkerFailed,
)
from hooktrainer.weight_sync.double_buffer import ModulePair
from hooktrainer.weight_sync.torn_reads import Fingerprint

EXIT_GRACE_S: Final = 1.0
"""Seconds that a worker has to end after its engine, or its generating thread to return, before it is killed."""

_MAX_SPANS: Final = 1000
"""Spans that wait for the next group that is finished."""


class RemoteGroupSource:
    """Group source of a worker, connected to the engine's replay buffer by messages."""

    def __init__(self, send: Callable[[object], object]) -> None:
        """`send` sends a message to the engine; an `OSError` means that the engine is dead."""
        self.stats: Final = RolloutStats()
        self.stats.timeline = self._timeline = KeptTimeline(kept=True, limit=_MAX_SPANS)
        self._send = send
        self._process = Original()
        self._sending = threading.Lock()
        self._arrived = threading.Condition()
        self._groups: deque[Group] = deque()
        self._received = 0
        self._fingerprints: dict[int, Collection[Fingerprint]] = {}
        self._reported = Capacity(0, 0)
        self._closed = False

    def send(self, message: object) -> None:
        """Send a message to the engine; close the source if the engine is dead."""
        self._process.exit_if_copied()
        try:
            with self._sending:
                self._send(message)
        except OSError:
            self.close()

    def report(self, error: BaseException) -> None:
        """Report that a thread of this worker failed; exit if that is not possible."""
        try:
            self.send(WorkerFailed(PackedError.of(error), threading.current_thread().name))
        except BaseException:  # noqa: BLE001 - the engine notices that the process ended
            os._exit(1)

    def put(self, groups: Sequence[Group]) -> None:
        """Add groups that the engine sent."""
        with self._arrived:
            self._groups += groups
            self._received += len(groups)
            self._arrived.notify_all()

    def close(self) -> None:
        """Wake the waiting thread; no group can be claimed afterwards."""
        with self._arrived:
            self._closed = True
            self._arrived.notify_all()

    def claim(self, limit: int, block: bool = True) -> Sequence[Group]:
        """Return groups that have arrived, and report to the engine how many more could start."""
        with self._arrived:
            taken = self._take(limit)
            capacity = Capacity(limit - len(taken), self._received)
            known = self._reported.groups - (self._received - self._reported.received)
        if capacity.groups != known:
            self._reported = capacity
            self.send(capacity)
        if block and not taken:
            with self._arrived:
                self._arrived.wait_for(lambda: self._groups or self._closed)
                taken = () if self._closed else self._take(limit)
        return taken

    def finish(self, group: Group, trajectories: Sequence[Trajectory] | None) -> None:
        """Send the answers of a claimed group to the engine."""
        self.send(
            GroupFinished(
                group.number,
                trajectories or (),
                self.stats.take(),
                self._fingerprints.pop(group.number, ()),
                self._timeline.take(),
                perf_counter(),
            )
        )

    def fail(self, group: Group, error: BaseException, reason: FailureReason = "error") -> None:
        """Report that a claimed group could not be generated."""
        self._fingerprints.pop(group.number, None)
        self.send(GroupFailed(group.number, PackedError.of(error), reason))

    def add_fingerprints(self, number: int, fingerprints: Collection[Fingerprint]) -> None:
        """Store the fingerprints of a group; the engine checks them when the group is finished."""
        self._fingerprints[number] = fingerprints

    def _take(self, limit: int) -> Sequence[Group]:
        return [self._groups.popleft() for _ in range(min(limit, len(self._groups)))]


class Worker:
    """Handles messages of the engine. A long answer delays none of them."""

    def __init__(self, source: RemoteGroupSource, config: WorkerConfig, sets: Sequence[Tensor]) -> None:
        torch.set_num_threads(config.options.intra_op_threads)
        self._modules = ModulePair(config.generator.policy)
        for module, flat in zip(self._modules.modules, sets, strict=True):
            use_tensors(module, config.layout.views(flat))
        generator = Generator(config.generator, config.options, self._modules, lambda text: source.send(Warned(text)))
        self._source = source
        self._stopped = threading.Event()
        self._generator = generator
        self._worker_loop = WorkerLoop(
            generator,
            source,
            source.stats,
            self._stopped,
            name=WORKER,
            check_fingerprints=source.add_fingerprints,
            on_failure=source.report,
        )
        generate = partial(self._worker_loop.run, block=True)
        self._thread = ReportingThread(generate, "rollout", source.report)

    def start(self) -> None:
        """Report that the worker is ready, and start to generate."""
        self._source.send(Ready())
        self._thread.start()

    def handle(self, message: Generate | Release | Pause | Use | Score | Resume) -> None:
        """Carry out a message of the engine, and acknowledge it."""
        match message:
            case Generate(groups):
                self._source.put(groups)
            case Release(ticket, index):
                self._source.stats.begin_sync()
                ReportingThread(partial(self._release, ticket, index), "release", self._source.report).start()
            case Pause(ticket):
                self._modules.pause()
                self._source.send(Acknowledged(ticket))
            case Use(ticket, index, version):
                self._modules.use(index, version)
                self._source.stats.end_sync()
                self._source.send(Acknowledged(ticket))
            case Score(ticket, tokens):
                self._source.send(Acknowledged(ticket, self._scores(tokens)))
            case Resume(ticket):
                self._modules.resume()
                self._source.send(Acknowledged(ticket))

    def stop(self) -> bool:
        """Stop generating, within a second; return whether all threads have ended."""
        deadline = monotonic() + EXIT_GRACE_S
        self._stopped.set()
        self._source.close()
        self._modules.resume()
        self._generator.close()
        self._thread.join(EXIT_GRACE_S)
        self._generator.finish(max(0.0, deadline - monotonic()))
        rewards = self._generator.join(max(0.0, deadline - monotonic()))
        if self._thread.is_alive():
            self._source.send(Abandoned(self._thread.name, place_of_thread(self._thread)))
        for thread in rewards:
            self._source.send(Abandoned(thread.name, place_of_user_code(thread)))
        return not rewards and not self._thread.is_alive()

    def _release(self, ticket: int, index: int) -> None:
        self._modules.release(index)
        self._source.send(Acknowledged(ticket))

    def _scores(self, tokens: Tokens) -> Floats | PackedError:
        try:
            return self._generator.logprobs(tokens)
        except Exception as error:  # noqa: BLE001 - the engine raises it in the sync
            return PackedError.of(error)
