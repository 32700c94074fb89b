"""Engine with worker processes, which generate on their own cores while the learner trains."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

import attrs

from hooktrainer.ports import RolloutEngine
from hooktrainer.rollout.generator_config import GeneratorConfig
from hooktrainer.rollout.workers.options import WorkerOptions


@attrs.frozen(kw_only=True)
class ProcessOptions(WorkerOptions):
    """Sample in worker processes, while the learner trains."""

    bytes_per_worker: ClassVar[int] = 64 * 2**20
    """Memory that a process with torch does not share with others, at least."""

    def build(self, config: GeneratorConfig) -> RolloutEngine:
        """Build the engine."""
        from hooktrainer.models.policy import full_state
        from hooktrainer.rollout.process.handle import ProcessHandle
        from hooktrainer.rollout.process.packing import pack
        from hooktrainer.rollout.process.shared_memory import MappedWeights, allocate_shared
        from hooktrainer.rollout.workers.engine import make_engine
        from hooktrainer.rollout.workers.flat_layout import FlatLayout, use_tensors
        from hooktrainer.rollout.workers.messages import WorkerConfig
        from hooktrainer.weight_sync.double_buffer import ModulePair

        modules = ModulePair(config.policy, self.sync_timeout_s)
        layout = FlatLayout.of(full_state(modules.modules[0]))
        packed = pack(WorkerConfig(generator=config, options=self, layout=layout))
        flats = allocate_shared(layout.nbytes, len(modules.modules))
        for module, flat in zip(modules.modules, flats, strict=True):
            use_tensors(module, layout.views(flat))
        sets = [layout.views(flat) for flat in flats]
        spawn = partial(ProcessHandle, config=packed, sets=flats)
        return make_engine(config, self, modules, sets, spawn=spawn, staging=MappedWeights())
