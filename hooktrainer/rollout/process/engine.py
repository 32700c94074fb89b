"""Engine with worker processes, which generate on their own cores while the learner trains."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

import attrs
import numpy as np
from attrs.validators import and_, ge, instance_of

from hooktrainer.errors import ConfigError
from hooktrainer.metrics import Sum
from hooktrainer.ports import Floats, ReplayBuffer, RolloutEngine, Tokens
from hooktrainer.rollout.engine import Engine
from hooktrainer.rollout.generator_config import GeneratorConfig
from hooktrainer.rollout.options import COUNT, SamplingOptions

if TYPE_CHECKING:
    from hooktrainer.rollout.generation import Generator
    from hooktrainer.rollout.process.messages import WorkerConfig
    from hooktrainer.rollout.process.pool import WorkerPool
    from hooktrainer.rollout.statistics import RolloutStats
    from hooktrainer.weight_sync.double_buffer import DoubleBuffer, ModulePair


class ProcessReaders:
    """Readers of the shared weights: this process, which validates with them, and the workers."""

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


class ProcessEngine(Engine):
    """Generates in processes that map one shared copy of the weights."""

    def __init__(self, generator: Generator, weights: DoubleBuffer, pool: WorkerPool, stats: RolloutStats) -> None:
        super().__init__(generator, weights, stats)
        self._pool = pool

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
        """Close the buffer, and end every process and thread within seconds."""
        self._pool.close()


@attrs.frozen(kw_only=True)
class ProcessOptions(SamplingOptions):
    """Sample in worker processes, while the learner trains."""

    bytes_per_worker: ClassVar[int] = 64 * 2**20
    """Memory that a process with torch does not share with others, at least."""

    workers: int = attrs.field(default=2, validator=COUNT)
    """Worker processes."""
    intra_op_threads: int = attrs.field(default=1, validator=COUNT)
    """Threads of one torch operation in each worker."""
    max_restarts: int = attrs.field(default=3, validator=and_(instance_of(int), ge(0)))
    """Restarts of each worker after it died, before the run fails."""

    def build(self, config: GeneratorConfig) -> RolloutEngine:
        """Build the engine."""
        from hooktrainer.models.policy import full_state
        from hooktrainer.rollout.generation import Generator
        from hooktrainer.rollout.process.messages import WorkerConfig
        from hooktrainer.rollout.process.pool import WorkerPool
        from hooktrainer.rollout.process.shared_memory import FlatLayout, use_tensors
        from hooktrainer.rollout.statistics import RolloutStats
        from hooktrainer.weight_sync.double_buffer import DoubleBuffer, ModulePair
        from hooktrainer.weight_sync.torn_reads import TornReadDetector

        modules, stats, detector = ModulePair(config.policy, self.sync_timeout_s), RolloutStats(), TornReadDetector()
        layout = FlatLayout.of(full_state(modules.modules[0]))
        packed = _packed(
            WorkerConfig(generator=config, options=self, layout=layout, intra_op_threads=self.intra_op_threads)
        )
        flats = layout.allocate(len(modules.modules))
        sets = [layout.views(flat) for flat in flats]
        for module, tensors in zip(modules.modules, sets, strict=True):
            use_tensors(module, tensors)
        pool = WorkerPool(
            packed,
            flats,
            workers=self.workers,
            max_restarts=self.max_restarts,
            sync_timeout_s=self.sync_timeout_s,
            stats=stats,
            detector=detector,
        )
        generator = Generator(config, self, modules)
        return ProcessEngine(generator, DoubleBuffer(sets, ProcessReaders(modules, pool), detector), pool, stats)


def _packed(config: WorkerConfig) -> bytes:
    from hooktrainer.rollout.process.main_module import require_importable_main
    from hooktrainer.rollout.process.messages import pack

    require_importable_main()
    try:
        return pack(config)
    except Exception as error:
        raise ConfigError(
            f"model and task are sent to worker processes, but cannot be pickled: {error}. Define classes and "
            "functions at the top level of a module or file, or use `rollout: {use: thread}`, which needs no pickling"
        ) from error
