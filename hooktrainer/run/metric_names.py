"""The metrics that the parts of a run make, and the check of options that name a metric.

A part of the user may make any metric. Unless its metrics are declared, no option is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

from hooktrainer.bus.handlers import PlacedPlugin
from hooktrainer.bus.plan import Plan
from hooktrainer.config import Config
from hooktrainer.errors import Fault, did_you_mean
from hooktrainer.plugin import METRIC, Plugin, option_fields
from hooktrainer.run.registry import PLUGINS

ROW: Final = "metrics.row"
_SPREAD: Final = ("mean", "max", "min")
ALWAYS: Final = (
    *(f"actor/{name}" for name in ("entropy", "grad_norm", "log_ratio_abs", "lr", "pg_clampfrac", "pg_clipfrac")),
    *(f"actor/{name}" for name in ("pg_loss", "ppo_kl", "skipped_updates", "updates_without_tokens")),
    *(f"critic/{name}/{part}" for name in ("advantages", "rewards", "score") for part in _SPREAD),
    *(f"{name}_length/{part}" for name in ("prompt", "response") for part in _SPREAD),
    "response_length/clip_ratio",
    *(f"global_seqlen/{part}" for part in ("max", "min", "minmax_diff")),
    *(f"perf/{name}" for name in ("idle_ratio", "rollout_tokens_per_worker_second", "throughput", "time_per_step")),
    "perf/total_num_tokens",
    *(f"replay/{name}" for name in ("dropped_repeatedly", "evicted_capacity", "finished", "handed_in_late")),
    *(f"replay/{name}" for name in ("pending", "running")),
    *(f"rollout/{name}" for name in ("num_tokens", "num_trajectories", "restarts")),
    *(f"timing_s/{name}" for name in ("engine_wait_groups", "engine_wait_weights", "gen", "generate", "step")),
    "timing_s/update_actor",
    "timing_per_token_ms/update_actor",
    "training/global_step",
    "training/off_policy/length_bias",
    "training/partial_iterations",
    "ledger/",
    "nan/",
    "perf/goodput/",
    "replay/failed/",
    "timing_s/group/",
    "timing_s/hook/",
)
"""Metrics of the loop, the learner, the engines and the buffer; a name that ends in `/` is a prefix."""
WITH_DIVERGENCE: Final = tuple(f"actor/{name}" for name in ("kl", "kl_coef", "kl_loss", "reward_kl_penalty"))
WITH_CRITIC: Final = (
    *(f"critic/{name}" for name in ("grad_norm", "lr", "vf_clipfrac", "vf_explained_var", "vf_loss")),
    "critic/returns/mean",
    "critic/values/mean",
)


def metric_faults(config: Config, plan: Plan) -> Iterator[Fault]:
    """Yield a fault for each option that names a metric which no part of the run makes."""
    made = _made(config, plan)
    for entry in plan.plugins:
        for field in option_fields(type(entry.plugin)):
            value = getattr(entry.plugin, field.name)
            if field.metadata.get(METRIC) and value is not None and made is not None and not _is_in(value, made):
                fault = Fault(f"{entry.address}.{field.name}", f"'{value}' is a metric that no part of the run makes.")
                yield plan.disabled.naming(fault, partial(_makes, value), _remedy(value, made))


def _made(config: Config, plan: Plan) -> Sequence[str] | None:
    """Return the names and prefixes of all metrics of a run; None if a part may make any metric."""
    names = list(ALWAYS)
    if config.algorithm.kl_coeff:
        names += WITH_DIVERGENCE
    if config.critic.use != "none":
        names += WITH_CRITIC
    if config.algorithm.proximal_policy != "bypass":
        names.append("rollout_corr/")
    loss = config.algorithm.policy_loss
    names += [f"actor/{name}" for name in _OF_LOSSES.get(loss, ())] if ":" not in loss else ["actor/"]
    if config.algorithm.clip_ratio_c is not None:
        names.append("actor/pg_clipfrac_lower")
    adders = {handler.owner for handlers in plan.handlers.values() for handler in handlers if ROW in handler.adds}
    if ":" in config.rollout.use or any(_declared(type(entry.plugin)) is None for entry in adders):
        return None
    return [*names, *(name for entry in plan.plugins for name in _declared(type(entry.plugin)) or ())]


def _declared(cls: type[Plugin]) -> tuple[str, ...] | None:
    """Return the metrics that the class itself declares, since a subclass may make others than its base."""
    declared = vars(cls).get("adds_metrics")
    return declared if isinstance(declared, tuple) else None


_OF_LOSSES: Final = {"decoupled_ppo": ("behaviour_weight", "behaviour_weight_capfrac")}


def _is_in(metric: str, names: Sequence[str]) -> bool:
    return any(metric == name or (name.endswith("/") and metric.startswith(name)) for name in names)


def _makes(metric: str, placed: PlacedPlugin) -> bool:
    return _is_in(metric, _declared(type(placed.plugin)) or ())


def _remedy(metric: str, made: Sequence[str]) -> str:
    for name in PLUGINS:
        if _is_in(metric, PLUGINS.resolve(name).adds_metrics or ()):
            return f" Add {name} to the plugins."
    return did_you_mean(metric, [name for name in made if not name.endswith("/")])
