"""The `algorithm` section of a configuration."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import attrs
from attrs.validators import ge, gt, in_, instance_of, le, lt, optional

from hooktrainer.algorithms import registry
from hooktrainer.algorithms.option_checks import (
    anchors_elsewhere,
    applies_a_weight,
    has_a_buffer,
    has_a_divergence,
    has_a_gradient,
    is_known,
    is_known_before,
    is_name_or_none,
    is_taken,
    reaches_the_loss,
    reads_criteria,
    weighs_something,
)


@attrs.frozen(kw_only=True)
class AlgorithmOptions:
    """How answers become a loss; an option that is left out is the usual one of its function."""

    adv_estimator: str = attrs.field(default="grpo", validator=is_known(registry.ADVANTAGE_ESTIMATORS))
    """Advantage estimator: a name, `package.module:function` or `file.py:function`."""
    adv_args: Mapping[str, Any] = attrs.field(factory=dict)
    """Its other options by name (`epsilon`)."""
    gamma: float | None = attrs.field(default=None, validator=[optional([ge(0.0), le(1.0)]), is_taken])
    """Discount of a later token, of estimators that know tokens; usually 1."""
    lam: float | None = attrs.field(default=None, validator=[optional([ge(0.0), le(1.0)]), is_taken])
    """λ of generalised advantage estimation: 1, as usual, trusts the rewards, 0 the critic."""
    policy_loss: str = attrs.field(default="ppo_clip", validator=[is_known(registry.POLICY_LOSSES), weighs_something])
    """Policy loss: a name, `package.module:function` or `file.py:function`."""
    policy_loss_args: Mapping[str, Any] = attrs.field(factory=dict)
    """Its other options by name."""
    clip_ratio_low: float | None = attrs.field(default=None, validator=[optional([ge(0.0), lt(1.0)]), is_taken])
    """How far below 1 the ratio of current to proximal policy may go before its gradient ends: usually 0.2, and 3e-4
    with gspo."""
    clip_ratio_high: float | None = attrs.field(default=None, validator=[optional(ge(0.0)), is_taken])
    """How far above 1 it may go: usually 0.2, and 4e-4 with gspo."""
    clip_ratio_c: float | None = attrs.field(default=None, validator=[optional(gt(1.0)), is_taken])
    """Dual clip: with a negative advantage, the ratio at which the loss stays (3 is usual). Off if left out."""
    cispo_max_ratio: float | None = attrs.field(default=None, validator=[optional(gt(0.0)), is_taken])
    """Largest weight that CISPO gives a token, usually 5: the ratio itself, not how far it is above 1."""
    proximal_policy: Literal["bypass", "recompute", "log_linear"] = attrs.field(
        default="bypass", validator=in_(("bypass", "recompute", "log_linear"))
    )
    """The policy that a step starts from, to which the ratio is taken. `bypass`: the sampler's log-probabilities stand
    for it, at no cost, but stale answers are clipped around a stale policy. `recompute`: one more forward pass a
    mini-batch, and a copy of the weights if a step has several. `log_linear`: interpolated between sampler and current
    policy by their versions, anew in each update, at no cost, but not exact."""
    behaviour_weight: str = attrs.field(default="none", validator=[is_name_or_none, anchors_elsewhere])
    """Weight of a token by proximal over behaviour policy: `none`, a name, or a function of one's own. The names:
    tis_token, tis_sequence, icepop, mis_token, mis_sequence, mask_geometric, mask_product."""
    behaviour_weight_low: float | None = attrs.field(default=None, validator=[optional(ge(0.0)), applies_a_weight])
    """Its lower bound on the ratio; the usual one of the method if left out."""
    behaviour_weight_high: float | None = attrs.field(default=None, validator=[optional(gt(0.0)), applies_a_weight])
    """Its upper bound."""
    rejection: Mapping[str, float | tuple[float, float]] = attrs.field(
        factory=dict, validator=[reads_criteria, anchors_elsewhere]
    )
    """Tokens or answers that do not count, by criterion, all of which must pass: token_, seq_sum_ or seq_mean_ with k1,
    [low, high] around the ratio of proximal to behaviour policy; these or seq_max_ with k2 or k3, an upper limit."""
    behaviour_weight_cap: float | None = attrs.field(default=None, validator=[optional(gt(0.0)), is_taken])
    """Largest weight that decoupled PPO gives a token; usually 5."""
    kl_coeff: float = attrs.field(default=0.0, converter=float, validator=[ge(0.0), lt(math.inf)])
    """Weight of the divergence from the reference model, the policy as it was at first; 0 needs no such model."""
    kl_estimator: Literal["k1", "k2", "k3"] = attrs.field(
        default="k3", validator=[in_(("k1", "k2", "k3")), has_a_divergence, has_a_gradient]
    )
    """Its estimator. In the reward take k1; in the loss k2 or k3, since k1 has no gradient there on average."""
    kl_in: Literal["loss", "reward"] = attrs.field(
        default="loss", validator=[in_(("loss", "reward")), has_a_divergence, is_known_before]
    )
    """Whether it is added to the loss, or taken from the reward of each token."""
    kl_off_policy_correction: bool = attrs.field(
        default=False, validator=[instance_of(bool), has_a_divergence, reaches_the_loss]
    )
    """Weigh the divergence in the loss by current over behaviour policy, so that stale answers do not bias it."""
    entropy_coeff: float = attrs.field(default=0.0, converter=float, validator=[ge(0.0), lt(math.inf)])
    """Weight of the entropy, which is taken from the loss: a larger one keeps the policy exploring."""
    loss_agg_mode: str = attrs.field(default="token-mean", validator=is_known(registry.LOSS_AGG_MODES))
    """How the losses of tokens become one number: a name, `package.module:function` or `file.py:function`."""
    ppo_epochs: int = attrs.field(default=1, validator=[instance_of(int), ge(1)])
    """Optimizer updates made of each mini-batch."""
    overlong_buffer: int | None = attrs.field(default=None, validator=optional([instance_of(int), ge(1)]))
    """Tokens before the longest response in which a penalty grows from 0; no penalty if left out."""
    overlong_penalty_factor: float = attrs.field(
        default=1.0, converter=float, validator=[ge(0.0), lt(math.inf), has_a_buffer]
    )
    """The penalty of a response of full length, taken from its score."""
    overlong_filtering: bool = attrs.field(default=False, validator=instance_of(bool))
    """Leave out the tokens of answers that were cut off at the longest response, before anything is counted."""

    @property
    def behaviour_weight_args(self) -> Mapping[str, float]:
        """The bounds that were given, by the names that the function of the weight has for them."""
        bounds = {"low": self.behaviour_weight_low, "high": self.behaviour_weight_high}
        return {name: bound for name, bound in bounds.items() if bound is not None}

    @property
    def wants_a_critic(self) -> bool | None:
        """Whether the advantages come of a critic's values; None for an estimator of the user's own, which may ask."""
        if self.adv_estimator in registry.ADVANTAGE_ESTIMATORS:
            return self.adv_estimator in registry.OF_A_CRITIC
        return None

    @property
    def compares_answers(self) -> bool:
        """Whether every advantage is 0 with one answer a prompt."""
        return self.adv_estimator in registry.GROUP_RELATIVE
