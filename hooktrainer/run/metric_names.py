"""The metrics that the parts of a run make, and the check of options that name a metric.

A part of the user may make any metric. Unless its metrics are declared, no option is refused, and the plan notes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

from hooktrainer._util.registry import BUILT_IN
from hooktrainer.bus.handlers import PlacedPlugin
from hooktrainer.bus.plan import Plan
from hooktrainer.config import Config
from hooktrainer.config.faults import short
from hooktrainer.config.fields import option_name
from hooktrainer.errors import Fault, did_you_mean
from hooktrainer.plugin import METRIC, Plugin, option_fields
from hooktrainer.ports import HasSources
from hooktrainer.run.registry import ENGINES, PLUGINS

ROW: Final = "metrics.row"
_SPREAD: Final = ("mean", "max", "min")
SCORE: Final = "critic/score/mean"
VALIDATION_SCORE: Final = "val/score/mean"
"""Metrics that are also made for each task of a mixture, as in `val/score/<name>/mean`."""
ALWAYS: Final = (
    *(f"actor/{name}" for name in ("entropy", "grad_norm", "log_ratio_abs", "lr", "pg_clampfrac", "pg_clipfrac")),
    *(f"actor/{name}" for name in ("pg_loss", "ppo_kl", "skipped_updates", "updates_without_tokens")),
    *(f"critic/{name}/{part}" for name in ("advantages", "rewards", "score") for part in _SPREAD),
    *(f"{name}_length/{part}" for name in ("prompt", "response") for part in _SPREAD),
    "critic/exact_match/mean",
    "data/filtered_too_long",
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
    "reward/",
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


def metric_faults(config: Config, plan: Plan, task: object = None) -> Iterator[Fault]:
    """Yield a fault for each option that names a metric which no part of the run makes."""
    made = _made(config, plan, task)
    for address, metric in _named(plan):
        if not _is_in(metric, made) and not _open_parts(config, plan):
            fault = Fault(address, f"{short(metric)} is a metric that no part of the run makes.")
            yield plan.disabled.naming(fault, partial(_makes, metric), _remedy(metric, made))


def unchecked_metrics(config: Config, plan: Plan, task: object = None) -> Iterator[str]:
    """Yield a sentence for each option that names a metric which may exist, with the reason."""
    made = _made(config, plan, task)
    for address, metric in _named(plan):
        prefix = next((name for name in made if name.endswith("/") and metric.startswith(name)), None)
        if metric in made:
            continue
        if prefix is None:
            reasons = _open_parts(config, plan)
        elif prefix == _OF_OWN_LOSS and ":" in config.algorithm.policy_loss:
            reasons = [f"algorithm.policy_loss may add any metric '{prefix}...': it is a function of your own"]
        else:
            reasons = [f"names '{prefix}...' are known only during the run"]
        if reasons:
            yield f"{address} = {short(metric)} cannot be checked: {', '.join(reasons[:_MAX_REASONS])}"


def _named(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield the address and the value of each option that names a metric."""
    for entry in plan.plugins:
        for field in option_fields(type(entry.plugin)):
            value = getattr(entry.plugin, field.name)
            if field.metadata.get(METRIC) and value is not None:
                yield f"{entry.address}.{option_name(field)}", value


def _made(config: Config, plan: Plan, task: object) -> Sequence[str]:
    """Return the names and prefixes of all metrics that are known to be made."""
    names = list(ALWAYS)
    if config.algorithm.kl_coeff:
        names += WITH_DIVERGENCE
    if config.critic.use != "none":
        names += WITH_CRITIC
    if config.algorithm.proximal_policy != "bypass":
        names.append("rollout_corr/")
    loss = config.algorithm.policy_loss
    names += [f"actor/{name}" for name in _OF_LOSSES.get(loss, ())] if ":" not in loss else [_OF_OWN_LOSS]
    if config.algorithm.clip_ratio_c is not None:
        names.append("actor/pg_clipfrac_lower")
    names += [name for entry in plan.plugins for name in declared_metrics(type(entry.plugin)) or ()]
    sources = task.sources if isinstance(task, HasSources) else ()
    scores = [name for name in (SCORE, VALIDATION_SCORE) if name in names]
    names += [f"{name.removesuffix('mean')}{source}/mean" for name in scores for source in sources]
    return [*names, *(f"data/groups/{source}" for source in sources)]


def _open_parts(config: Config, plan: Plan) -> Sequence[str]:
    """Return the parts of the run that may add any metric."""
    handlers = [handler for handlers in plan.handlers.values() for handler in handlers]
    adders = dict.fromkeys(handler.owner for handler in handlers if ROW in handler.adds)
    own = ":" in config.rollout.use or ENGINES[config.rollout.use].distribution != BUILT_IN
    return [
        *(["rollout.use may add any metric: it is an engine of your own"] if own else []),
        *(
            f"{entry.address} ({entry.name}) may add any metric: its class has no tuple adds_metrics"
            for entry in adders
            if declared_metrics(type(entry.plugin)) is None
        ),
    ]


def declared_metrics(cls: type[Plugin]) -> tuple[str, ...] | None:
    """Return the metrics that the class itself declares, since a subclass may make others than its base."""
    declared = vars(cls).get("adds_metrics")
    return declared if isinstance(declared, tuple) else None


_MAX_REASONS: Final = 3
_OF_OWN_LOSS: Final = "actor/"
"""Prefix of the metrics that a policy loss of the user may add."""
_OF_LOSSES: Final = {"decoupled_ppo": ("behaviour_weight", "behaviour_weight_capfrac")}


def _is_in(metric: str, names: Sequence[str]) -> bool:
    return any(metric == name or (name.endswith("/") and metric.startswith(name)) for name in names)


def _makes(metric: str, placed: PlacedPlugin) -> bool:
    return _is_in(metric, declared_metrics(type(placed.plugin)) or ())


def _remedy(metric: str, made: Sequence[str]) -> str:
    for name in PLUGINS:
        if _is_in(metric, PLUGINS.resolve(name).adds_metrics or ()):
            return f" Add {name} to the plugins."
    return did_you_mean(metric, [name for name in made if not name.endswith("/")])
