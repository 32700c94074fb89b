"""A worker process: its main thread listens to the engine, another one answers groups."""

from __future__ import annotations

import atexit
import gc
import os
import signal
import threading
from collections import deque
from collections.abc import Collection, Sequence
from multiprocessing.connection import Connection
from typing import Final

import torch
from torch import Tensor

from hooktrainer.ports import FailureReason, Floats, Group, Tokens, Trajectory
from hooktrainer.rollout.generation import Generator
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
    unpack,
)
from hooktrainer.rollout.process.shared_memory import adopt
from hooktrainer.rollout.stats import RolloutStats
from hooktrainer.rollout.worker_loop import WorkerLoop
from hooktrainer.weight_sync.double_buffer import ModulePair
from hooktrainer.weight_sync.torn_reads import Fingerprint

PATIENCE_S: Final = 1.0
"""How long an answer in work may hold up the end of the process."""


def main(connection: Connection, config: bytes, sets: Sequence[Tensor]) -> None:
    """Serve the engine at the other end until it closes the connection, or is no more."""
    # Not blocked any more, since a task's own processes would inherit that; and not ignored, for the same reason.
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    atexit.register(gc.freeze)  # else Python looks through all of torch for garbage before it ends
    source = RemoteGroupSource(connection)
    try:
        worker = Worker(source, config, sets)
    except BaseException as error:  # noqa: BLE001 - the engine raises it
        source.send(Failed(None, PackedError.of(error)))
        return
    worker.start()
    try:
        while True:
            worker.handle(connection.recv())
    except (EOFError, OSError):
        worker.stop()


class RemoteGroupSource:
    """The engine's replay buffer, as far as a worker sees it, at the other end of a connection."""

    def __init__(self, connection: Connection) -> None:
        self.stats: Final = RolloutStats()
        self._connection = connection
        self._sending = threading.Lock()
        self._arrived = threading.Condition()
        self._groups: deque[Group] = deque()
        self._received = 0
        self._fingerprints: dict[int, Collection[Fingerprint]] = {}
        self._told = Room(0, 0)
        self._closed = False

    def send(self, message: object) -> None:
        """Tell the engine; nothing if it is no more."""
        try:
            with self._sending:
                self._connection.send(message)
        except OSError:
            self.close()

    def put(self, groups: Sequence[Group]) -> None:
        """Groups have arrived."""
        with self._arrived:
            self._groups += groups
            self._received += len(groups)
            self._arrived.notify_all()

    def close(self) -> None:
        """Nothing will arrive any more."""
        with self._arrived:
            self._closed = True
            self._arrived.notify_all()

    def claim(self, limit: int, block: bool = True) -> Sequence[Group]:
        """Take groups that have arrived, and tell the engine how many more there is room for."""
        with self._arrived:
            taken = self._take(limit)
            room = Room(limit - len(taken), self._received)
        if room.groups and room != self._told:
            self._told = room
            self.send(room)
        if taken or not block:
            return taken
        with self._arrived:
            self._arrived.wait_for(lambda: self._groups or self._closed)
            return () if self._closed else self._take(limit)

    def finish(self, group: Group, trajectories: Sequence[Trajectory]) -> None:
        """Hand in the answers of a claimed group."""
        self.send(Finished(group.number, trajectories, self.stats.take(), self._fingerprints.pop(group.number, ())))

    def fail(self, group: Group, error: BaseException, reason: FailureReason = "error") -> None:
        """Say that a claimed group could not be generated."""
        self._fingerprints.pop(group.number, None)
        self.send(Failed(group.number, PackedError.of(error), reason))

    def note(self, number: int, fingerprints: Collection[Fingerprint]) -> None:
        """A group was sampled from these weights, which the engine judges when it is finished."""
        self._fingerprints[number] = fingerprints

    def _take(self, limit: int) -> Sequence[Group]:
        return [self._groups.popleft() for _ in range(min(limit, len(self._groups)))]


class Worker:
    """What the engine's messages act on; a long answer delays none of them."""

    def __init__(self, source: RemoteGroupSource, packed: bytes, sets: Sequence[Tensor]) -> None:
        config = unpack(packed)
        torch.set_num_threads(config.intra_op_threads)
        self._modules = ModulePair(config.policy)
        for module, flat in zip(self._modules.modules, sets, strict=True):
            adopt(module, config.layout.views(flat))
        generator = Generator(
            weights=self._modules,
            tokenizer=config.tokenizer,
            task=config.task,
            seed=config.seed,
            options=config.options,
        )
        self._source = source
        self._stopped = threading.Event()
        self._generator = generator
        self._server = WorkerLoop(generator, source, source.stats, self._stopped, source.note)
        self._thread = threading.Thread(target=self._serve, name="rollout", daemon=True)

    def start(self) -> None:
        """Begin to answer."""
        self._source.send(Ready())
        self._thread.start()

    def handle(self, message: Work | Release | Pause | Use | Score | Resume) -> None:
        """Do what the engine asks for."""
        match message:
            case Work(groups):
                self._source.put(groups)
            case Release(ticket, place):
                self._source.stats.begin_sync()
                threading.Thread(target=self._release, args=(ticket, place), daemon=True).start()
            case Pause(ticket):
                self._modules.pause()
                self._source.send(Done(ticket))
            case Use(ticket, place, version):
                self._modules.use(place, version)
                self._source.stats.end_sync()
                self._source.send(Done(ticket))
            case Score(ticket, tokens):
                self._source.send(Done(ticket, self._scores(tokens)))
            case Resume(ticket):
                self._modules.resume()
                self._source.send(Done(ticket))

    def stop(self) -> None:
        """End the process at once, even in the middle of a score that never returns."""
        self._stopped.set()
        self._source.close()
        self._modules.resume()
        self._thread.join(PATIENCE_S)
        if self._thread.is_alive():
            os._exit(0)

    def _release(self, ticket: int, place: int) -> None:
        self._modules.release(place)
        self._source.send(Done(ticket))

    def _scores(self, tokens: Tokens) -> Floats | PackedError:
        try:
            return self._generator.logprobs(tokens)
        except Exception as error:  # noqa: BLE001 - it is raised where the sync is
            return PackedError.of(error)

    def _serve(self) -> None:
        try:
            self._server.run(block=True)
        except BaseException as error:  # noqa: BLE001 - the engine raises it
            self._source.send(Failed(None, PackedError.of(error)))
