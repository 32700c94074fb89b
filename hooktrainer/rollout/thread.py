"""Engine with worker threads, which generate while the learner trains."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING

import attrs

from hooktrainer._util.places import place_of_thread
from hooktrainer._util.threads import ReportingThread, failure_of
from hooktrainer.errors import HookTrainerError, RolloutError
from hooktrainer.ports import FailureReason, Group, ReplayBuffer, RolloutEngine, Trajectory
from hooktrainer.rollout.engine import GRACE_S, ReversibleEngine, listed_groups, make_parts, warn_of_abandoned
from hooktrainer.rollout.generator_config import GeneratorConfig
from hooktrainer.rollout.options import COUNT, LocalOptions

if TYPE_CHECKING:
    from hooktrainer.rollout.generation import Generator
    from hooktrainer.rollout.worker_loop import WorkerLoop
    from hooktrainer.weight_sync.double_buffer import DoubleBuffer


class FairSource:
    """Distributes the pending groups of a buffer evenly over the workers; none claims more than it can start."""

    def __init__(self, buffer: ReplayBuffer, workers: int) -> None:
        self._buffer = buffer
        self._workers = workers
        self._free: dict[int, int] = {}
        """Groups that each worker could still start after its last claim, by thread."""
        self._claiming = threading.Lock()

    def claim(self, limit: int, block: bool = True) -> Sequence[Group]:
        """Return a share of the pending groups; without `block`, nothing while another worker waits for groups."""
        worker = threading.get_ident()
        self._free[worker] = limit
        if not limit or not self._claiming.acquire(blocking=block):
            return ()
        try:
            pending = self._buffer.count_pending(block)
            if not pending:
                return ()
            others = [free for other, free in list(self._free.items()) if other != worker]
            others += [limit] * (self._workers - len(self._free))  # workers that have not claimed yet are free
            taken = self._buffer.claim(_share(pending, limit, others), block=False)
            self._free[worker] = limit - len(taken)
            return taken
        finally:
            self._claiming.release()

    def finish(self, group: Group, trajectories: Sequence[Trajectory] | None) -> None:
        """Hand in the answers of a claimed group."""
        self._buffer.finish(group, trajectories)

    def fail(self, group: Group, error: BaseException, reason: FailureReason = "error") -> None:
        """Report that a claimed group could not be generated."""
        self._buffer.fail(group, error, reason)

    def close(self) -> None:
        """Close the buffer."""
        self._buffer.close()


def _share(pending: int, free: int, others: Sequence[int]) -> int:
    """Return how many groups a worker takes, so that all workers are left with about the same number of free slots.

    That is at least one, because other workers may take long until they claim.
    """
    rivals = sorted(others)
    while True:
        share = -(-(pending + len(rivals) * free - sum(rivals)) // (1 + len(rivals)))
        if not rivals or rivals[0] >= free - share:
            return min(max(1, share), free)
        del rivals[0]  # it has fewer free slots than the others are left with


class ThreadEngine(ReversibleEngine):
    """Generates in worker threads, which share the pending groups."""

    def __init__(self, generator: Generator, weights: DoubleBuffer, workers: int) -> None:
        super().__init__(generator, weights)
        self._num_workers = workers
        self._workers: list[threading.Thread] = []
        self._loops: list[WorkerLoop] = []
        self._failure: HookTrainerError | None = None

    def start(self, buffer: ReplayBuffer) -> None:
        """Start the workers."""
        super().start(buffer)
        source = FairSource(buffer, self._num_workers)
        for number in range(self._num_workers):
            name = f"rollout-{number}"
            loop = self._worker_loop(source, name, self._fail)
            worker = ReportingThread(partial(loop.run, block=True), name, self._fail)
            self._workers.append(worker)
            self._loops.append(loop)
            worker.start()

    def describe_workers(self, group: int | None = None) -> str:
        """Describe the worker that generates a group, or with None all workers that have groups, with their method."""
        loops = list(zip(self._workers, self._loops, strict=True))
        workers = [(worker, loop.groups) for worker, loop in loops]
        busy = [(worker, own) for worker, own in workers if (own if group is None else group in own)]
        rewards = [reward for _, loop in loops for reward in loop.describe_rewards(group)]
        return ", ".join(
            [
                f"{worker.name} is in {place_of_thread(worker)}, with {listed_groups(own)}"
                for worker, own in busy or (workers if group is None and not rewards else [])
            ]
            + rewards
        )

    def pump(self) -> None:
        """Raise the error of a worker that failed."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def close(self) -> None:
        """Close the buffer, which ends every wait there, and join the workers; abandon those that do not return.

        Raises the error of a worker that failed before and that `pump` has not raised.
        """
        failure, self._failure = self._failure, None
        self._stopped.set()
        self._weights.resume()  # wakes workers that wait in a sync that was interrupted
        if self._buffer is not None:
            self._buffer.close()
        self._generator.close()  # wakes workers that wait for scores
        deadline = monotonic() + GRACE_S
        self._loops.clear()
        while self._workers:
            worker = self._workers.pop()
            worker.join(max(0.0, deadline - monotonic()))
            if worker.is_alive():
                warn_of_abandoned([worker], place_of_thread)
        self._end_rewards(max(0.0, deadline - monotonic()))
        self._buffer = None
        if failure is not None:
            raise failure

    def _fail(self, error: BaseException) -> None:
        self._failure = failure_of(error, RolloutError)
        if self._buffer is not None:
            self._buffer.close()  # wakes the loop, which calls `pump`


@attrs.frozen(kw_only=True)
class ThreadOptions(LocalOptions):
    """Sample in threads of this process, while the learner trains."""

    workers: int = attrs.field(default=1, validator=COUNT)
    """Worker threads."""

    def build(self, config: GeneratorConfig) -> RolloutEngine:
        """Build the engine."""
        return ThreadEngine(*make_parts(self, config), self.workers)
