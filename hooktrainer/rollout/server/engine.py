"""Engine with inference servers, which generate while the learner trains."""

from __future__ import annotations

import attrs

from hooktrainer.errors import ConfigError
from hooktrainer.ports import RolloutEngine
from hooktrainer.rollout.generator_config import GeneratorConfig
from hooktrainer.rollout.server.options import ServingOptions


@attrs.frozen(kw_only=True)
class ServerOptions(ServingOptions):
    """Sample on inference servers of vLLM, which run beside the trainer."""

    def build(self, config: GeneratorConfig) -> RolloutEngine:
        """Build the engine; no server is asked before the first weight sync."""
        from hooktrainer.models.policy import full_state
        from hooktrainer.rollout.server.pool import ServerPool
        from hooktrainer.rollout.server.server_engine import ServedGenerator, ServerEngine
        from hooktrainer.rollout.server.weight_folders import WeightFolders
        from hooktrainer.weight_sync.double_buffer import DoubleBuffer, ModulePair

        if config.save is None:
            raise ConfigError(
                "the engine server writes the weights as a folder, and the model has no `save(module, tokenizer, "
                "folder)` (hooktrainer/models/README.md)"
            )
        modules = ModulePair(config.policy, self.sync_timeout_s)
        pool = ServerPool(self, eos_ids=frozenset(config.tokenizer.eos_ids), max_length=config.max_length)
        generator = ServedGenerator(config, self, modules, pool)
        weights = DoubleBuffer([full_state(module) for module in modules.modules], modules)
        return ServerEngine(generator, weights, pool, WeightFolders(self.weights_dir, config.save, config.tokenizer))
