"""Engine with worker threads, which generate while the learner trains."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Final

import attrs

from hooktrainer._util.hangs import place_of_thread
from hooktrainer.errors import RolloutError, repr_of
from hooktrainer.ports import FailureReason, Group, GroupSource, ReplayBuffer, RolloutEngine, Task, Trajectory
from hooktrainer.rollout.engine import Engine, make_parts
from hooktrainer.rollout.options import COUNT, SamplingOptions
from hooktrainer.tasks.tokenizer import CharTokenizer

if TYPE_CHECKING:
    from torch import nn

    from hooktrainer.rollout.generation import Generator
    from hooktrainer.weight_sync.double_buffer import DoubleBuffer


_LOG: Final = logging.getLogger("hooktrainer")
GRACE_S: Final = 1.5
"""Seconds that workers have to return after the engine was closed. They check after every token."""


class FairSource:
    """Distributes the pending groups of a buffer evenly over the workers that have free slots.

    No more groups are claimed than free slots can start. A claimed group that its intended worker does not take goes to
    the next worker that claims.
    """

    def __init__(self, buffer: GroupSource, workers: int) -> None:
        self._buffer = buffer
        self._workers = workers
        self._free: dict[int, int] = {}
        """Groups that each worker could still start after its last claim, by thread."""
        self._claimed: deque[Group] = deque()
        self._share = 0
        self._claiming = threading.Lock()

    def claim(self, limit: int, block: bool = True, *, begin: bool = True) -> Sequence[Group]:
        """Return a share of the pending groups; without `block`, nothing while another worker waits for groups."""
        worker = threading.get_ident()
        self._free[worker] = limit
        if not self._claiming.acquire(blocking=block):
            return ()
        try:
            if not self._claimed:
                others = [free for other, free in list(self._free.items()) if other != worker and free]
                others += [limit] * (
                    self._workers - len(self._free)
                )  # workers that have not claimed yet have all slots free
                self._claimed += self._buffer.claim(limit + sum(others), block, begin=begin)
                self._share = -(-len(self._claimed) // (1 + len(others)))
            taken = [self._claimed.popleft() for _ in range(min(limit, self._share, len(self._claimed)))]
            self._free[worker] = limit - len(taken)
            return taken
        finally:
            self._claiming.release()

    def begin(self, groups: Sequence[Group]) -> None:
        """Start the timeout of groups that were claimed with `begin=False`."""
        self._buffer.begin(groups)

    def finish(self, group: Group, trajectories: Sequence[Trajectory] | None) -> None:
        """Hand in the answers of a claimed group."""
        self._buffer.finish(group, trajectories)

    def fail(self, group: Group, error: BaseException, reason: FailureReason = "error") -> None:
        """Report that a claimed group could not be generated."""
        self._buffer.fail(group, error, reason)

    def close(self) -> None:
        """Close the buffer."""
        self._buffer.close()


class ThreadEngine(Engine):
    """Generates in worker threads, which share the pending groups."""

    def __init__(self, generator: Generator, weights: DoubleBuffer, workers: int) -> None:
        super().__init__(generator, weights)
        self._num_workers = workers
        self._workers: list[threading.Thread] = []
        self._error: BaseException | None = None

    def start(self, buffer: ReplayBuffer) -> None:
        """Start the workers."""
        super().start(buffer)
        source = FairSource(buffer, self._num_workers)
        for number in range(self._num_workers):
            # Daemon threads, since a thread that never returns from user code cannot be ended.
            worker = threading.Thread(target=self._work, args=(source,), name=f"rollout-{number}", daemon=True)
            worker.start()
            self._workers.append(worker)

    def pump(self) -> None:
        """Raise the error of a worker that failed."""
        if self._error is not None:
            raise RolloutError(f"a rollout worker died: {repr_of(self._error)}") from self._error

    def close(self) -> None:
        """Close the buffer, which ends every wait there, and join the workers; abandon those that do not return."""
        self._stopped.set()
        self._weights.resume()  # wakes workers that wait in a sync that was interrupted
        if self._buffer is not None:
            self._buffer.close()
        deadline = monotonic() + GRACE_S
        while self._workers:
            worker = self._workers.pop()
            worker.join(max(0.0, deadline - monotonic()))
            if worker.is_alive():
                text = "%s did not return within %g s and is abandoned; it is in %s"
                _LOG.warning(text, worker.name, GRACE_S, place_of_thread(worker))
        self._buffer = None

    def _work(self, source: FairSource) -> None:
        try:
            self._worker_loop(source).run(block=True)
        except BaseException as error:  # noqa: BLE001 - raised again by `pump` on the loop's thread
            self._error = error
            source.close()


@attrs.frozen(kw_only=True)
class ThreadOptions(SamplingOptions):
    """Sample in threads of this process, while the learner trains."""

    workers: int = attrs.field(default=1, validator=COUNT)
    """Worker threads."""

    def build(
        self, *, policy: Callable[[], nn.Module], tokenizer: CharTokenizer, task: Task, seed: int
    ) -> RolloutEngine:
        """Build the engine; `policy` returns a new module of the learner's architecture at each call."""
        parts = make_parts(self, policy=policy, tokenizer=tokenizer, task=task, seed=seed)
        return ThreadEngine(*parts, self.workers)
