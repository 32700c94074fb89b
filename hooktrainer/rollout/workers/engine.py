"""Engine with a pool of workers outside this process, which generate while the learner trains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from hooktrainer.metrics import Sum
from hooktrainer.ports import Floats, ReplayBuffer, Tokens
from hooktrainer.rollout.engine import GRACE_S, ReversibleEngine

if TYPE_CHECKING:
    from torch import Tensor

    from hooktrainer.ports import Weights
    from hooktrainer.rollout.generation import Generator
    from hooktrainer.rollout.generator_config import GeneratorConfig
    from hooktrainer.rollout.statistics import RolloutStats
    from hooktrainer.rollout.workers.handle import SpawnWorker
    from hooktrainer.rollout.workers.options import WorkerOptions
    from hooktrainer.rollout.workers.pool import WorkerPool
    from hooktrainer.rollout.workers.staging import WeightStaging
    from hooktrainer.weight_sync.double_buffer import DoubleBuffer, ModulePair


class WorkerReaders:
    """Readers of the weights: this process, which validates with them, and the workers."""

    def __init__(self, modules: ModulePair, pool: WorkerPool) -> None:
        self._modules = modules
        self._pool = pool

    def release(self, index: int) -> None:
        """Return once no reader uses this set, which is not the one in use."""
        self._modules.release(index)
        self._pool.release(index)

    def limit_waits(self) -> None:
        """Wait only briefly for each worker until the next `release`, because a failed sync is being undone."""
        self._pool.limit_waits()

    def pause(self) -> None:
        """Return once no request can start, until `resume`."""
        self._modules.pause()
        self._pool.pause()

    def use(self, index: int, version: int) -> None:
        """Return once every reader uses this set for new requests."""
        try:
            self._pool.use(index, version)
        finally:  # also if the pool has failed
            self._modules.use(index, version)

    def resume(self) -> None:
        """Let requests start again."""
        self._modules.resume()
        self._pool.resume()


class WorkerEngine(ReversibleEngine):
    """Generates in the workers of a pool, and validates in this process."""

    def __init__(self, generator: Generator, weights: DoubleBuffer, pool: WorkerPool, stats: RolloutStats) -> None:
        super().__init__(generator, weights, stats)
        self._pool = pool

    def stage(self, weights: Weights, version: int) -> Mapping[str, int]:
        """Copy a bucket into the spare set, and into that of each worker; return the checksums of the copies."""
        held = super().stage(weights, version)
        copied = self._weights.spec()
        found = self._pool.stage(self._weights.spare, {name: copied[name] for name in weights})
        wrong = {name: value for worker in found for name, value in worker.items() if value != held[name]}
        return {**held, **wrong}

    def logprobs(self, tokens: Tokens) -> Floats:
        """Return log-probabilities from the weights in use, (L,) -> (R, L - 1): one row per process that reads them."""
        return np.stack([super().logprobs(tokens), *self._pool.score(tokens)])

    def start(self, buffer: ReplayBuffer) -> None:
        """Spawn the workers; each takes a few seconds until it is ready."""
        super().start(buffer)
        self._pool.start(buffer)

    def describe_workers(self, group: int | None = None) -> str:
        """Describe the worker that generates a group, or with None all workers that have groups."""
        return self._pool.describe_workers(group)

    def pump(self) -> None:
        """Raise the error that ended generation, such as a worker that died too often."""
        self._pool.raise_if_failed()

    def take_metrics(self) -> Mapping[str, object]:
        """Return the metrics since the last call."""
        self._stats.record({"rollout/restarts": Sum(0)})
        return super().take_metrics()

    def close(self) -> None:
        """Close the buffer, and end every worker and thread within seconds."""
        try:
            self._pool.close()
        finally:
            self._end_rewards(GRACE_S)


def make_engine(
    config: GeneratorConfig,
    options: WorkerOptions,
    modules: ModulePair,
    sets: Sequence[Mapping[str, Tensor]],
    *,
    spawn: SpawnWorker,
    staging: WeightStaging,
) -> WorkerEngine:
    """Return an engine with workers from `spawn`, which validates with `modules`, whose tensors are `sets`."""
    from hooktrainer.rollout.generation import Generator
    from hooktrainer.rollout.statistics import RolloutStats
    from hooktrainer.rollout.workers.pool import WorkerPool
    from hooktrainer.weight_sync.double_buffer import DoubleBuffer
    from hooktrainer.weight_sync.torn_reads import TornReadDetector

    stats, detector = RolloutStats(), TornReadDetector()
    pool = WorkerPool(
        spawn,
        staging,
        workers=options.workers,
        max_restarts=options.max_restarts,
        sync_timeout_s=options.sync_timeout_s,
        stats=stats,
        detector=detector,
    )
    generator = Generator(config, options, modules)
    return WorkerEngine(generator, DoubleBuffer(sets, WorkerReaders(modules, pool), detector), pool, stats)
