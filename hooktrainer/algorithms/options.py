"""The `algorithm` section of a configuration, with the checks between its options."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import attrs
from attrs.validators import ge, gt, in_, instance_of, le, lt, optional

from hooktrainer.algorithms import registry
from hooktrainer.algorithms.criteria import criterion_fault
from hooktrainer.errors import ConfigError, Fault


def _needs_two_policies(algorithm: AlgorithmOptions, key: attrs.Attribute[Any], value: object) -> None:
    """Refuse a correction where proximal and behaviour policy are the same, or are corrected already."""
    if value == "none" or not value:
        return
    shown = ", ".join(value) if isinstance(value, Mapping) else f"'{value}'"
    if algorithm.proximal_policy == "bypass":
        raise ConfigError(
            f"{shown} uses the ratio of proximal to behaviour policy, which is 1 everywhere with "
            "proximal_policy: bypass; set recompute or log_linear"
        )
    if key.name == "behaviour_weight" and algorithm.policy_loss == "decoupled_ppo":
        raise ConfigError(
            f"{shown} would apply the ratio of proximal to behaviour policy a second time: decoupled_ppo already "
            "weighs by it. Set policy_loss: ppo_clip, or behaviour_weight: none"
        )


def _bounds_a_weight(algorithm: AlgorithmOptions, _: attrs.Attribute[Any], value: float | None) -> None:
    """Refuse bounds without a weight, and bounds in the wrong order."""
    low, high = algorithm.behaviour_weight_low, algorithm.behaviour_weight_high
    if value is not None and algorithm.behaviour_weight == "none":
        raise ConfigError(f"{value} has no effect, since behaviour_weight is none")
    if value == low and low is not None and high is not None and low > high:
        raise ConfigError(f"behaviour_weight_low = {low} is above behaviour_weight_high = {high}")


def _is_taken(algorithm: AlgorithmOptions, key: attrs.Attribute[Any], value: float | None) -> None:
    """Refuse an option that no chosen function takes; user-defined functions are checked once they are imported."""
    names = {section_key: getattr(algorithm, section_key) for section_key in registry.FUNCTIONS}
    own = any(name != "none" and name not in registry.FUNCTIONS[at] for at, name in names.items())
    if value is None or own or any(key.name in registry.OPTIONS.get(name, ()) for name in names.values()):
        return
    raise ConfigError(registry.taken_by_none(key.name, value, names.values()))


def _has_a_divergence(algorithm: AlgorithmOptions, key: attrs.Attribute[Any], value: object) -> None:
    """Refuse an option of the divergence where its weight is 0."""
    if value != key.default and not algorithm.kl_coeff:
        shown = "it" if value is True else str(value)
        raise ConfigError(f"{shown} has no effect with kl_coeff = 0: there is no reference model; set kl_coeff")


def _has_a_buffer(algorithm: AlgorithmOptions, key: attrs.Attribute[Any], value: float) -> None:
    """Refuse a penalty factor without the tokens over which the penalty grows."""
    if value != key.default and algorithm.overlong_buffer is None:
        raise ConfigError(f"{value} has no effect without overlong_buffer, the tokens over which the penalty grows")


def _has_a_gradient(algorithm: AlgorithmOptions, _: attrs.Attribute[str], value: str) -> None:
    """Refuse k1 in the loss without the correction: the gradient of k1 is 0 on average."""
    if value == "k1" and algorithm.kl_coeff and algorithm.kl_in == "loss" and not algorithm.kl_off_policy_correction:
        raise ConfigError(
            "k1 in the loss has an expected gradient of 0, since only its value is unbiased; set k2 or k3, or kl_in: "
            "reward, or kl_off_policy_correction: true"
        )


def _reaches_the_loss(algorithm: AlgorithmOptions, _: attrs.Attribute[bool], value: bool) -> None:
    """Refuse a correction of the loss for a divergence in the reward."""
    if value and algorithm.kl_in == "reward":
        raise ConfigError("it weighs the divergence in the loss, and kl_in is reward")


def _is_known_before_the_update(algorithm: AlgorithmOptions, _: attrs.Attribute[str], value: str) -> None:
    """Refuse a divergence in the reward with an interpolated policy, which is unknown before the first update."""
    if value == "reward" and algorithm.proximal_policy == "log_linear":
        raise ConfigError(
            "the reward requires the proximal policy before the first update, and log_linear computes it from the "
            "current one in each update; set proximal_policy: recompute, or bypass for the sampler's "
            "log-probabilities, or kl_in: loss"
        )


def _weighs_something(algorithm: AlgorithmOptions, _: attrs.Attribute[str], value: str) -> None:
    """Refuse decoupled PPO where the proximal policy is the sampler."""
    if value == "decoupled_ppo" and algorithm.proximal_policy == "bypass":
        raise ConfigError(
            "decoupled_ppo weighs by the ratio of proximal to behaviour policy, which is 1 everywhere with "
            "proximal_policy: bypass; set recompute or log_linear, or policy_loss: ppo_clip"
        )


def _has_known_criteria(_: AlgorithmOptions, __: attrs.Attribute[Any], value: Mapping[str, Any]) -> None:
    """Refuse unknown criteria, and bounds of the wrong kind. Raises `ConfigError` with every fault."""
    faults = [Fault(key, fault) for key, bound in value.items() if (fault := criterion_fault(key, bound))]
    if faults:
        raise ConfigError(faults)


@attrs.frozen(kw_only=True)
class AlgorithmOptions:
    """How answers become a loss; an option that is left out has the default of its function."""

    adv_estimator: str = registry.ADVANTAGE_ESTIMATORS.option("grpo")
    """Advantage estimator: a name, `package.module:function` or `file.py:function`."""
    adv_args: Mapping[str, Any] = attrs.field(factory=dict)
    """Further options of the estimator by name, such as `epsilon`."""
    gamma: float | None = attrs.field(default=None, validator=[optional([ge(0.0), le(1.0)]), _is_taken])
    """Discount per token, of estimators that work on tokens; default 1."""
    lam: float | None = attrs.field(default=None, validator=[optional([ge(0.0), le(1.0)]), _is_taken])
    """λ of generalised advantage estimation: 1, the default, relies on the rewards, 0 on the critic."""
    policy_loss: str = registry.POLICY_LOSSES.option("ppo_clip", validator=[_weighs_something])
    """Policy loss: a name, `package.module:function` or `file.py:function`."""
    policy_loss_args: Mapping[str, Any] = attrs.field(factory=dict)
    """Further options of the policy loss by name."""
    clip_ratio_low: float | None = attrs.field(default=None, validator=[optional([ge(0.0), lt(1.0)]), _is_taken])
    """How far below 1 the ratio of current to proximal policy may be before its gradient is cut: default 0.2, and 3e-4
    with gspo."""
    clip_ratio_high: float | None = attrs.field(default=None, validator=[optional(ge(0.0)), _is_taken])
    """How far above 1 the ratio may be: default 0.2, and 4e-4 with gspo."""
    clip_ratio_c: float | None = attrs.field(default=None, validator=[optional(gt(1.0)), _is_taken])
    """Dual clip: the ratio at which the loss of a negative advantage stops growing (often 3). Off if left out."""
    cispo_max_ratio: float | None = attrs.field(default=None, validator=[optional(gt(0.0)), _is_taken])
    """Largest weight that CISPO gives a token, default 5: the ratio itself, not its distance from 1."""
    proximal_policy: Literal["bypass", "recompute", "log_linear"] = attrs.field(
        default="bypass", validator=in_(("bypass", "recompute", "log_linear"))
    )
    """The policy at the start of a step, the denominator of the ratio. `bypass` uses the sampler's log-probabilities:
    no cost, but stale answers are clipped around a stale policy. `recompute` adds a forward pass per mini-batch,
    and a copy of the weights if a step has several. `log_linear` interpolates between sampler and current policy by
    their versions in each update: no cost, but not exact."""
    behaviour_weight: str = registry.BEHAVIOUR_WEIGHTS.option(
        "none", besides=("none",), validator=[_needs_two_policies]
    )
    """Weight of a token by proximal over behaviour policy: `none`, a name, `package.module:function` or
    `file.py:function`. The names: tis_token, tis_sequence, icepop, mis_token, mis_sequence, mask_geometric,
    mask_product."""
    behaviour_weight_low: float | None = attrs.field(default=None, validator=[optional(ge(0.0)), _bounds_a_weight])
    """Lower bound of that weight on the ratio; the default of the function if left out."""
    behaviour_weight_high: float | None = attrs.field(default=None, validator=[optional(gt(0.0)), _bounds_a_weight])
    """Upper bound of that weight on the ratio; the default of the function if left out."""
    rejection: Mapping[str, float | tuple[float, float]] = attrs.field(
        factory=dict, validator=[_has_known_criteria, _needs_two_policies]
    )
    """Criteria that tokens or answers must all pass to be trained on. A criterion with k1 (token_k1, seq_sum_k1,
    seq_mean_k1) takes [low, high], bounds of the ratio of proximal to behaviour policy. A criterion with k2 or k3 takes
    an upper limit, also with the scope seq_max."""
    behaviour_weight_cap: float | None = attrs.field(default=None, validator=[optional(gt(0.0)), _is_taken])
    """Largest weight that decoupled PPO gives a token; default 5."""
    kl_coeff: float = attrs.field(default=0.0, converter=float, validator=[ge(0.0), lt(math.inf)])
    """Weight of the divergence from the reference model, the initial policy; 0 needs no reference model."""
    kl_estimator: Literal["k1", "k2", "k3"] = attrs.field(
        default="k3", validator=[in_(("k1", "k2", "k3")), _has_a_divergence, _has_a_gradient]
    )
    """Estimator of the divergence. Use k1 in the reward, and k2 or k3 in the loss, where the gradient of k1 is 0 on
    average."""
    kl_in: Literal["loss", "reward"] = attrs.field(
        default="loss", validator=[in_(("loss", "reward")), _has_a_divergence, _is_known_before_the_update]
    )
    """Whether the divergence is added to the loss, or subtracted from the reward of each token."""
    kl_off_policy_correction: bool = attrs.field(
        default=False, validator=[instance_of(bool), _has_a_divergence, _reaches_the_loss]
    )
    """Weigh the divergence in the loss by current over behaviour policy, so that stale answers do not bias it."""
    entropy_coeff: float = attrs.field(default=0.0, converter=float, validator=[ge(0.0), lt(math.inf)])
    """Weight of the entropy, which is subtracted from the loss: a larger one keeps the policy exploring."""
    loss_agg_mode: str = registry.LOSS_AGG_MODES.option("token-mean")
    """How the losses of tokens become one number: a name, `package.module:function` or `file.py:function`."""
    ppo_epochs: int = attrs.field(default=1, validator=[instance_of(int), ge(1)])
    """Optimizer updates per mini-batch."""
    overlong_buffer: int | None = attrs.field(default=None, validator=optional([instance_of(int), ge(1)]))
    """Tokens before the longest response over which a penalty grows from 0; no penalty if left out."""
    overlong_penalty_factor: float = attrs.field(
        default=1.0, converter=float, validator=[ge(0.0), lt(math.inf), _has_a_buffer]
    )
    """Penalty of a response of full length, subtracted from its score."""
    overlong_filtering: bool = attrs.field(default=False, validator=instance_of(bool))
    """Exclude the tokens of truncated answers from training and from its metrics."""

    @property
    def behaviour_weight_args(self) -> Mapping[str, float]:
        """Return the bounds that were given, by the parameter names of the weight's function."""
        bounds = {"low": self.behaviour_weight_low, "high": self.behaviour_weight_high}
        return {name: bound for name, bound in bounds.items() if bound is not None}

    @property
    def needs_a_critic(self) -> bool | None:
        """Whether the estimator requires the values of a critic; None for a user-defined function, which may."""
        if self.adv_estimator in registry.ADVANTAGE_ESTIMATORS:
            return self.adv_estimator in registry.OF_A_CRITIC
        return None

    @property
    def compares_answers(self) -> bool:
        """Whether every advantage is 0 with one answer per prompt."""
        return self.adv_estimator in registry.GROUP_RELATIVE
