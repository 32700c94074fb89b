"""The `algorithm` section of a configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
from attrs.validators import and_, ge, gt, instance_of, lt

from hooktrainer.algorithms import registry


def _known(names: Mapping[str, str]) -> Any:
    def check(_: object, __: attrs.Attribute[str], value: str) -> None:
        registry.check(value, names)

    return and_(instance_of(str), check)


@attrs.frozen(kw_only=True)
class Algorithm:
    """How answers become a loss."""

    adv_estimator: str = attrs.field(default="grpo", validator=_known(registry.ADVANTAGE_ESTIMATORS))
    """Advantage estimator: a name, or `package.module:function`."""
    policy_loss: str = attrs.field(default="ppo_clip", validator=_known(registry.POLICY_LOSSES))
    """Policy loss: a name, or `package.module:function`."""
    clip_ratio_low: float = attrs.field(default=0.2, converter=float, validator=[gt(0.0), lt(1.0)])
    """How far below 1 the ratio of current to proximal policy may go before its gradient ends."""
    clip_ratio_high: float = attrs.field(default=0.2, converter=float, validator=gt(0.0))
    """How far above 1 it may go."""
    entropy_coeff: float = attrs.field(default=0.0, converter=float, validator=ge(0.0))
    """Weight of the entropy, which is taken from the loss: a larger one keeps the policy exploring."""
    loss_agg_mode: str = attrs.field(default="token-mean", validator=_known(registry.LOSS_AGG_MODES))
    """How the losses of tokens become one number: a name, or `package.module:function`."""
