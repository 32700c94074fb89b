"""The actor of Ray that runs a worker."""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import ray
import torch

from hooktrainer.rollout.ray.cluster import unpack
from hooktrainer.rollout.workers.messages import Acknowledged, PackedError
from hooktrainer.rollout.workers.worker import RemoteGroupSource, Worker
from hooktrainer.weight_sync.checksums import as_bytes, checksum

if TYPE_CHECKING:
    from numpy.typing import NDArray

GROUPS: Final = {"control": 1, "staging": 1, "messages": 1}
"""Threads that run the methods of the actor, so that none waits for methods of another kind."""


class RolloutActor:
    """Runs a worker. Its messages to the engine wait in a queue until the engine reads them."""

    def __init__(self, packed: bytes) -> None:
        self._outbox: SimpleQueue[object] = SimpleQueue()
        self._source = RemoteGroupSource(self._outbox.put)
        self._worker: Worker | None = None
        try:
            config = unpack(packed)
            flats = [torch.zeros(max(config.layout.nbytes, 1), dtype=torch.uint8) for _ in range(2)]
            self._sets = [config.layout.views(flat) for flat in flats]
            self._worker = Worker(self._source, config, flats)
            self._worker.start()
        except BaseException as error:  # noqa: BLE001 - the engine raises it
            self._source.report(error)

    @ray.method(concurrency_group="messages")
    def place(self) -> tuple[int, str, str]:
        """Return the pid, the id of the node and its address."""
        return os.getpid(), ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address()

    @ray.method(concurrency_group="messages")
    def read(self) -> bytes:
        """Wait for a message to the engine; return all that are there, pickled, so that arrays arrive writable."""
        messages = [self._outbox.get()]
        try:
            while True:
                messages.append(self._outbox.get_nowait())
        except Empty:
            return pickle.dumps(messages)

    @ray.method(concurrency_group="control")
    def handle(self, packed: bytes, *_staged: object) -> None:
        """Carry out a message of the engine, after the weights in `_staged` were copied."""
        try:
            assert self._worker is not None
            self._worker.handle(pickle.loads(packed))  # noqa: S301 - sent by our own engine
        except BaseException as error:  # noqa: BLE001 - the engine raises it
            self._source.report(error)

    @ray.method(concurrency_group="control")
    def stop(self) -> None:
        """Stop the worker; the last message is None."""
        try:
            if self._worker is not None:  # its configuration could be loaded
                self._worker.stop()
        finally:
            self._outbox.put(None)

    @ray.method(concurrency_group="staging")
    def stage(self, ticket: int, index: int, bucket: Mapping[str, NDArray[np.uint8]]) -> None:
        """Copy a bucket into a set, and send the checksums of the copy."""
        reply: Any
        try:
            reply = self._copy(index, bucket)
        except Exception as error:  # noqa: BLE001 - the engine raises it in the sync
            reply = PackedError.of(error)
        self._source.send(Acknowledged(ticket, reply))

    def _copy(self, index: int, bucket: Mapping[str, NDArray[np.uint8]]) -> Mapping[str, int]:
        copied = {}
        for name, values in bucket.items():
            target = self._sets[index][name]
            np.copyto(as_bytes(target), values)  # torch warns of arrays that cannot be written, such as `values`
            copied[name] = checksum(target)
        return copied
