"""The engine's handle of one Ray actor."""

from __future__ import annotations

import os
import pickle
import re
import signal
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Final

import ray
from ray.exceptions import RayActorError

from hooktrainer._util.threads import ReportingThread, failure_of
from hooktrainer.errors import HookTrainerError
from hooktrainer.rollout.process.process_exit import state_of
from hooktrainer.rollout.ray.actor import GROUPS, RolloutActor
from hooktrainer.rollout.workers.handle import WorkerHandle
from hooktrainer.rollout.workers.messages import Stage

_CAUSE: Final = re.compile(r"Worker exit detail: (.*?)(?:\. Some common causes|$)", re.DOTALL)


class ActorHandle(WorkerHandle):
    """Starts an actor. A thread waits for its messages and for its end."""

    def __init__(self, number: int, restarts: int, config: bytes, num_cpus: float, resources: dict[str, float]) -> None:
        super().__init__(number, restarts)
        self._name = f"rollout worker {number} (Ray actor)"
        self._pid: int | None = None
        """Its pid, if it runs on this machine."""
        self._received: SimpleQueue[object] = SimpleQueue()
        self._ended = threading.Event()
        self._error: RayActorError | None = None
        self._failure: HookTrainerError | None = None
        self._copying: list[Any] = []
        """Calls that copy weights, and that the next message has to wait for."""
        self._sending = threading.Lock()
        self._readable, self._writable = socket.socketpair()
        for end in (self._readable, self._writable):
            end.setblocking(False)
        options: dict[str, Any] = {"num_cpus": num_cpus, "resources": resources, "max_restarts": 0}
        remote: Any = ray.remote
        self.actor: Final = remote(concurrency_groups=GROUPS, **options)(RolloutActor).remote(config)
        self._thread = ReportingThread(self._listen, f"actor-{number}", self._fail)
        self._thread.start()

    def __str__(self) -> str:
        return self._name

    @property
    def state(self) -> str:
        """Whether it is running or stopped, as the end of a sentence."""
        running = "running" if self._pid is None else state_of(self._pid)
        return f"is {running}" if self.ready else "is starting, or waiting for resources of the cluster"

    @property
    def was_killed(self) -> bool:
        """Whether it ended after it was made."""
        return self._error is not None and not self._error.actor_init_failed

    @property
    def advice(self) -> str:
        """What the user can do about how it ended."""
        if self.was_killed:
            return "If no user killed it, its node was lost or out of memory: lower `workers` or `slots`."
        return "It never became ready: each node needs the same Python, hooktrainer, and modules of the task."

    def send(self, message: object, seconds: float | None = None) -> bool:  # noqa: ARG002 (Ray queues messages)
        """Send a message; return True at once."""
        with self._sending:
            self._record_request(message)
            if isinstance(message, Stage):
                self._copying.append(self.actor.stage.remote(message.ticket, message.index, message.bucket))
            else:
                copying, self._copying = self._copying, []
                self.actor.handle.remote(pickle.dumps(message), *copying)
        return True

    def received(self) -> Iterator[object]:
        """Yield the messages that it sent and that were not read yet."""
        with suppress(BlockingIOError):
            while self._readable.recv(4096):
                pass
        with suppress(Empty):
            while True:
                yield self._received.get_nowait()

    def waitables(self) -> Sequence[socket.socket]:
        """Return objects that become readable when it sends a message or dies."""
        return [self._readable]

    def is_dead(self, seconds: float | None = 0.0) -> bool:
        """Return whether it has ended, after waiting for at most `seconds`."""
        return self._ended.wait(seconds)

    def exit_description(self) -> str:
        """Describe how it ended."""
        if self._error is None:
            return "returned early"
        text = str(self._error).strip()
        found = _CAUSE.search(text)
        return f"died ({' '.join((found[1] if found else text.splitlines()[-1]).split())})"

    def raise_if_unwatched(self) -> None:
        """Raise the error of the thread that waits for its end, if there is one."""
        if self._failure is not None:
            raise self._failure

    def abandon(self) -> Sequence[Any]:
        """Release the resources of a dead worker, and return its groups in flight."""
        self.close()
        return super().abandon()

    def hang_up(self) -> None:
        """Request that it ends, without blocking."""
        self.actor.stop.remote()

    def kill(self) -> None:
        """Kill it. Ray does not end processes that are stopped at once, so those on this machine get a signal."""
        ray.kill(self.actor)
        if self._pid is not None and not self._ended.is_set():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(self._pid, signal.SIGKILL)

    def sever(self) -> None:
        """Do nothing: sending to an actor never blocks."""

    def close(self) -> None:
        """Release the resources of a dead worker."""
        self._thread.join()
        for end in (self._readable, self._writable):
            end.close()

    def _listen(self) -> None:
        try:
            pid, node, address = ray.get(self.actor.place.remote())
            self._name = f"rollout worker {self.number} (pid {pid} on {address})"
            self._pid = pid if node == ray.get_runtime_context().get_node_id() else None
            self.spans.shares_clock = self._pid is not None
            while self._read():
                pass
            ray.kill(self.actor)
        except RayActorError as error:
            self._error = error
        self._end()

    def _read(self) -> bool:
        """Wait for messages; return False after the last one."""
        messages = pickle.loads(ray.get(self.actor.read.remote()))  # noqa: S301 - sent by our own worker
        for message in messages:
            if message is not None:
                self._received.put(message)
        self._wake()
        return messages[-1] is not None

    def _fail(self, error: BaseException) -> None:
        self._failure = failure_of(error)
        ray.kill(self.actor)
        self._end()

    def _end(self) -> None:
        self._ended.set()
        # The end of the stream stays readable. The pool may just be reading a byte, after it asked whether this ended.
        self._writable.shutdown(socket.SHUT_WR)

    def _wake(self) -> None:
        with suppress(BlockingIOError):  # it is readable already
            self._writable.send(b"x")
