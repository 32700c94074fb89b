"""An engine with worker threads: they sample while the learner learns."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Final

import attrs

from hooktrainer.errors import RolloutError
from hooktrainer.ports import FailureReason, Group, ReplayBuffer, RolloutEngine, Task, Trajectory
from hooktrainer.rollout.engine import Engine
from hooktrainer.rollout.options import COUNT, SamplingOptions
from hooktrainer.tasks.tokenizer import CharTokenizer

if TYPE_CHECKING:
    from torch import nn

    from hooktrainer.rollout.generation import Generator
    from hooktrainer.weight_sync.double_buffer import DoubleBuffer


_LOG: Final = logging.getLogger("hooktrainer")
GRACE_S: Final = 1.5
"""Seconds that workers have to return once the engine is closed; they look up after every token."""


class FairShares:
    """A buffer that several workers claim from, in even shares; what one leaves goes to whoever asks next."""

    def __init__(self, buffer: ReplayBuffer, workers: int) -> None:
        self._buffer = buffer
        self._workers = workers
        self._claimed: deque[Group] = deque()
        self._share = 0
        self._claiming = threading.Lock()

    def claim(self, limit: int, block: bool = True) -> Sequence[Group]:
        """A share of what is pending; without `block`, nothing while another worker waits for groups."""
        if not self._claiming.acquire(blocking=block):
            return ()
        try:
            if not self._claimed:
                self._claimed += self._buffer.claim(limit * self._workers, block)
                self._share = -(-len(self._claimed) // self._workers)
            return [self._claimed.popleft() for _ in range(min(limit, self._share, len(self._claimed)))]
        finally:
            self._claiming.release()

    def finish(self, group: Group, trajectories: Sequence[Trajectory]) -> None:
        """Hand in the answers of a claimed group."""
        self._buffer.finish(group, trajectories)

    def fail(self, group: Group, error: BaseException, reason: FailureReason = "error") -> None:
        """Say that a claimed group could not be generated."""
        self._buffer.fail(group, error, reason)


class ThreadEngine(Engine):
    """Each worker claims its share of what is pending."""

    def __init__(self, generator: Generator, weights: DoubleBuffer, workers: int) -> None:
        super().__init__(generator, weights)
        self._num_workers = workers
        self._workers: list[threading.Thread] = []
        self._died: BaseException | None = None

    def start(self, buffer: ReplayBuffer) -> None:
        """Start the workers."""
        super().start(buffer)
        shares = FairShares(buffer, self._num_workers)
        for number in range(self._num_workers):
            # A daemon, since nothing can end a thread that never returns from somebody's code.
            worker = threading.Thread(target=self._work, args=(buffer, shares), name=f"rollout-{number}", daemon=True)
            worker.start()
            self._workers.append(worker)

    def pump(self) -> None:
        """Raise if a worker died, so that nobody waits for it."""
        if self._died is not None:
            raise RolloutError(f"a rollout worker died: {self._died!r}") from self._died

    def close(self) -> None:
        """Close the buffer that it serves, which ends every wait there, and join the workers as far as they return."""
        self._stopped.set()
        self._weights.resume()  # for who waits at a sync that broke off
        if self._buffer is not None:
            self._buffer.close()
        deadline = monotonic() + GRACE_S
        while self._workers:
            worker = self._workers.pop()
            worker.join(max(0.0, deadline - monotonic()))
            if worker.is_alive():
                _LOG.warning("%s did not return within %g s and is abandoned", worker.name, GRACE_S)
        self._buffer = None

    def _work(self, buffer: ReplayBuffer, shares: FairShares) -> None:
        try:
            self._server(shares).run(block=True)
        except BaseException as error:  # noqa: BLE001 - raised again on the loop's thread, which the close wakes
            self._died = error
            buffer.close()


@attrs.frozen(kw_only=True)
class ThreadOptions(SamplingOptions):
    """Sample in threads of this process, while the learner learns."""

    workers: int = attrs.field(default=1, validator=COUNT)
    """Worker threads."""

    def build(
        self, *, policy: Callable[[], nn.Module], tokenizer: CharTokenizer, task: Task, seed: int
    ) -> RolloutEngine:
        """The engine; `policy` makes a new module of the learner's architecture at each call."""
        parts = self.parts(policy=policy, tokenizer=tokenizer, task=task, seed=seed)
        return ThreadEngine(*parts, self.workers)
