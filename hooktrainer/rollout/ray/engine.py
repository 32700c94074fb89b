"""Engine with Ray actors, which generate on this machine or on the nodes of a cluster."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from functools import partial

import attrs
from attrs.validators import ge, instance_of, optional

from hooktrainer.errors import ConfigError
from hooktrainer.ports import RolloutEngine
from hooktrainer.rollout.generator_config import GeneratorConfig
from hooktrainer.rollout.workers.options import WorkerOptions

_NOT_CUSTOM = {"CPU": "set rollout.num_cpus", "GPU": "workers sample on the CPU", "memory": "Ray limits no memory here"}


def _are_custom(_options: object, _field: object, resources: Mapping[str, object]) -> None:
    for name, amount in resources.items():
        if name in _NOT_CUSTOM:
            raise ConfigError(f"'{name}' is no custom resource of a cluster; {_NOT_CUSTOM[name]}")
        if isinstance(amount, bool) or not isinstance(amount, int | float) or not 0 < amount < float("inf"):
            raise ConfigError(f"'{name}' is {amount!r}, expected a positive number for each worker")


@attrs.frozen(kw_only=True)
class RayOptions(WorkerOptions):
    """Sample in Ray actors, on one or many machines, while the learner trains."""

    num_cpus: float = attrs.field(default=1.0, converter=float, validator=ge(0.0))
    """CPUs that Ray reserves for each worker."""
    resources: dict[str, float] = attrs.field(factory=dict, converter=dict, validator=_are_custom)
    """Custom resources of the cluster that Ray reserves for each worker, such as `{rollout_node: 1}`."""
    address: str | None = attrs.field(default=None, validator=optional(instance_of(str)))
    """Address of a cluster: `auto` or `host:6379`. If left out, that in `RAY_ADDRESS`, else Ray
    starts on this machine and ends with the run."""

    def __attrs_post_init__(self) -> None:
        """Raise `ConfigError` if Ray is not installed."""
        if importlib.util.find_spec("ray") is None:
            raise ConfigError("the engine ray needs Ray, which is not installed: pip install 'hooktrainer[ray]'")

    @property
    def cluster_address(self) -> str | None:
        """Address of the cluster to join, None to start Ray on this machine."""
        found = self.address or os.environ.get("RAY_ADDRESS")
        return None if found in {None, "", "local"} else found

    @property
    def local_workers(self) -> int:
        """Workers that certainly run on this machine."""
        return 0 if self.cluster_address else self.workers

    def build(self, config: GeneratorConfig) -> RolloutEngine:
        """Build the engine; Ray is started with it, not before."""
        from hooktrainer.models.policy import full_state
        from hooktrainer.rollout.ray.cluster import Cluster, pack
        from hooktrainer.rollout.ray.handle import ActorHandle
        from hooktrainer.rollout.ray.object_store import ObjectStore
        from hooktrainer.rollout.workers.engine import make_engine
        from hooktrainer.rollout.workers.flat_layout import FlatLayout
        from hooktrainer.rollout.workers.messages import WorkerConfig
        from hooktrainer.weight_sync.double_buffer import ModulePair

        modules = ModulePair(config.policy, self.sync_timeout_s)
        sets = [full_state(module) for module in modules.modules]
        packed = pack(WorkerConfig(generator=config, options=self, layout=FlatLayout.of(sets[0])))
        cluster = Cluster(self.cluster_address, self.workers, {"CPU": self.num_cpus, **self.resources})
        spawn = partial(ActorHandle, config=packed, num_cpus=self.num_cpus, resources=self.resources)
        return make_engine(config, self, modules, sets, spawn=spawn, staging=ObjectStore(sets, cluster))
