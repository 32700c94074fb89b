"""What the keys of the `algorithm` section ask of each other; each is a validator of attrs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from attrs.validators import and_, instance_of

from hooktrainer.algorithms import registry
from hooktrainer.algorithms.criteria import criterion_fault
from hooktrainer.errors import ConfigError, Fault

if TYPE_CHECKING:
    import attrs

    from hooktrainer.algorithms.options import Algorithm

_DUAL_CLIP: Final = ("ppo_clip", "decoupled_ppo")


def is_known(names: Mapping[str, str]) -> Any:
    """A name of the registry, or a function of the user's own."""

    def check(_: object, __: attrs.Attribute[str], value: str) -> None:
        registry.check(value, names)

    return and_(instance_of(str), check)


def is_name_or_none(_: Algorithm, __: attrs.Attribute[str], value: str) -> None:
    """`none`, a name of the registry, or a function of the user's own."""
    if value != "none":
        registry.check(value, {"none": "", **registry.BEHAVIOUR_WEIGHTS})


def anchors_elsewhere(algorithm: Algorithm, key: attrs.Attribute[Any], value: object) -> None:
    """What looks at the ratio of proximal to behaviour policy needs them to differ."""
    if value == "none" or not value:
        return
    if algorithm.proximal_policy == "bypass":
        raise ConfigError(
            f"{_shown(value)} looks at the ratio of proximal to behaviour policy, which is 1 everywhere with "
            "proximal_policy: bypass; take recompute or log_linear"
        )
    if key.name == "behaviour_weight" and algorithm.policy_loss == "decoupled_ppo":
        raise ConfigError(
            f"{_shown(value)} would apply the ratio of proximal to behaviour policy a second time: it is the weight of "
            "decoupled_ppo. Take ppo_clip, or behaviour_weight: none"
        )


def applies_a_weight(algorithm: Algorithm, _: attrs.Attribute[Any], value: float | None) -> None:
    """Bounds of a weight need one, and the right order."""
    low, high = algorithm.behaviour_weight_low, algorithm.behaviour_weight_high
    if value is not None and algorithm.behaviour_weight == "none":
        raise ConfigError(f"{value} bounds nothing, since behaviour_weight is none")
    if value == low and low is not None and high is not None and low > high:
        raise ConfigError(f"behaviour_weight_low = {low} is above behaviour_weight_high = {high}")


def reads_dual_clip(algorithm: Algorithm, _: attrs.Attribute[Any], value: float | None) -> None:
    """The built-in losses without dual clip would pass over its bound."""
    loss = algorithm.policy_loss
    if value is not None and loss in registry.POLICY_LOSSES and loss not in _DUAL_CLIP:
        raise ConfigError(f"{value} bounds nothing: {loss} has no dual clip. {' and '.join(_DUAL_CLIP)} have")


def reaches_the_loss(algorithm: Algorithm, _: attrs.Attribute[bool], value: bool) -> None:
    """A correction of the loss needs the divergence there."""
    if value and algorithm.kl_in == "reward":
        raise ConfigError("it weighs the divergence in the loss, and kl_in is reward")


def weighs_something(algorithm: Algorithm, _: attrs.Attribute[str], value: str) -> None:
    """Decoupled PPO needs a proximal policy that is not the sampler."""
    if value == "decoupled_ppo" and algorithm.proximal_policy == "bypass":
        raise ConfigError(
            "decoupled_ppo weighs by the ratio of proximal to behaviour policy, which is 1 everywhere with "
            "proximal_policy: bypass; take recompute or log_linear, or policy_loss: ppo_clip"
        )


def reads_criteria(_: Algorithm, __: attrs.Attribute[Any], value: Mapping[str, Any]) -> None:
    """Known criteria, each with the kind of bound that it compares with. Raises `ConfigError` with every fault."""
    faults = [Fault(key, fault) for key, bound in value.items() if (fault := criterion_fault(key, bound))]
    if faults:
        raise ConfigError(faults)


def _shown(value: object) -> str:
    return ", ".join(value) if isinstance(value, Mapping) else f"'{value}'"
