"""What the keys of the `algorithm` section ask of each other; each is a validator of attrs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from attrs.validators import and_, instance_of

from hooktrainer.algorithms import registry
from hooktrainer.algorithms.criteria import criterion_fault
from hooktrainer.errors import ConfigError, Fault

if TYPE_CHECKING:
    import attrs

    from hooktrainer.algorithms.options import AlgorithmOptions


def is_known(names: Mapping[str, str]) -> Any:
    """A name of the registry, or a function of the user's own."""

    def check(_: object, __: attrs.Attribute[str], value: str) -> None:
        registry.check(value, names)

    return and_(instance_of(str), check)


def is_name_or_none(_: AlgorithmOptions, __: attrs.Attribute[str], value: str) -> None:
    """`none`, a name of the registry, or a function of the user's own."""
    if value != "none":
        registry.check(value, {"none": "", **registry.BEHAVIOUR_WEIGHTS})


def anchors_elsewhere(algorithm: AlgorithmOptions, key: attrs.Attribute[Any], value: object) -> None:
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


def applies_a_weight(algorithm: AlgorithmOptions, _: attrs.Attribute[Any], value: float | None) -> None:
    """Bounds of a weight need one, and the right order."""
    low, high = algorithm.behaviour_weight_low, algorithm.behaviour_weight_high
    if value is not None and algorithm.behaviour_weight == "none":
        raise ConfigError(f"{value} bounds nothing, since behaviour_weight is none")
    if value == low and low is not None and high is not None and low > high:
        raise ConfigError(f"behaviour_weight_low = {low} is above behaviour_weight_high = {high}")


def is_taken(algorithm: AlgorithmOptions, key: attrs.Attribute[Any], value: float | None) -> None:
    """An option is for a function that takes it; what a function of the user's own takes is seen once it is loaded."""
    names = {section_key: getattr(algorithm, section_key) for section_key in registry.FUNCTIONS}
    own = any(name != "none" and name not in registry.FUNCTIONS[at] for at, name in names.items())
    if value is None or own or any(key.name in registry.OPTIONS.get(name, ()) for name in names.values()):
        return
    raise ConfigError(registry.taken_by_none(key.name, value, names.values()))


def has_a_divergence(algorithm: AlgorithmOptions, key: attrs.Attribute[Any], value: object) -> None:
    """What says how the divergence is taken needs one."""
    if value != key.default and not algorithm.kl_coeff:
        shown = "it" if value is True else str(value)
        raise ConfigError(f"{shown} has no effect with kl_coeff = 0: there is no reference model; set kl_coeff")


def has_a_buffer(algorithm: AlgorithmOptions, key: attrs.Attribute[Any], value: float) -> None:
    """A penalty needs the tokens in which it grows."""
    if value != key.default and algorithm.overlong_buffer is None:
        raise ConfigError(f"{value} has no effect without overlong_buffer, the tokens in which the penalty grows")


def has_a_gradient(algorithm: AlgorithmOptions, _: attrs.Attribute[str], value: str) -> None:
    """k1 in the loss needs the correction: its own gradient is 0 on average."""
    if value == "k1" and algorithm.kl_coeff and algorithm.kl_in == "loss" and not algorithm.kl_off_policy_correction:
        raise ConfigError(
            "k1 in the loss pulls nowhere on average, since only its value is unbiased; take k2 or k3, or kl_in: "
            "reward, or kl_off_policy_correction: true"
        )


def reaches_the_loss(algorithm: AlgorithmOptions, _: attrs.Attribute[bool], value: bool) -> None:
    """A correction of the loss needs the divergence there."""
    if value and algorithm.kl_in == "reward":
        raise ConfigError("it weighs the divergence in the loss, and kl_in is reward")


def is_known_before(algorithm: AlgorithmOptions, _: attrs.Attribute[str], value: str) -> None:
    """A divergence in the reward is taken before the first update, when an interpolated policy is not known yet."""
    if value == "reward" and algorithm.proximal_policy == "log_linear":
        raise ConfigError(
            "the reward needs the proximal policy before the first update, and log_linear makes it of the current one "
            "in each update; take proximal_policy: recompute, or bypass for the sampler's log-probabilities, or "
            "kl_in: loss"
        )


def weighs_something(algorithm: AlgorithmOptions, _: attrs.Attribute[str], value: str) -> None:
    """Decoupled PPO needs a proximal policy that is not the sampler."""
    if value == "decoupled_ppo" and algorithm.proximal_policy == "bypass":
        raise ConfigError(
            "decoupled_ppo weighs by the ratio of proximal to behaviour policy, which is 1 everywhere with "
            "proximal_policy: bypass; take recompute or log_linear, or policy_loss: ppo_clip"
        )


def reads_criteria(_: AlgorithmOptions, __: attrs.Attribute[Any], value: Mapping[str, Any]) -> None:
    """Known criteria, each with the kind of bound that it compares with. Raises `ConfigError` with every fault."""
    faults = [Fault(key, fault) for key, bound in value.items() if (fault := criterion_fault(key, bound))]
    if faults:
        raise ConfigError(faults)


def _shown(value: object) -> str:
    return ", ".join(value) if isinstance(value, Mapping) else f"'{value}'"
