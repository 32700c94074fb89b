"""The `optim` and `critic` sections of a configuration."""

from __future__ import annotations

import math
from typing import Any, Literal

import attrs
from attrs.validators import ge, gt, in_, instance_of, le, lt, optional

from hooktrainer.learner.schedule import SHAPES, UNITS, Schedule, Shape, Unit

_COUNT = optional([instance_of(int), ge(1)])


def _one_budget(optim: OptimOptions, _attribute: attrs.Attribute[Any], tokens: int | None) -> None:
    if tokens is not None and optim.micro_batch_size is not None:
        raise ValueError(
            f"micro_batch_size = {optim.micro_batch_size} and micro_batch_tokens = {tokens} both say how large a "
            "micro-batch is; leave one of them out"
        )


def _begins(optim: OptimOptions, key: attrs.Attribute[Any], value: object) -> None:
    if optim.lr_decay_start is None and value != key.default:
        raise ValueError(f"{value} has no effect without lr_decay_start; 0 lets it fall from the first unit on")


def _needs_a_critic(critic: CriticOptions, key: attrs.Attribute[Any], value: float | None) -> None:
    if value != key.default and critic.use == "none":
        raise ValueError(f"{value} has no effect with use: none; take value_head or model")


def _is_above_0_or_none(_: CriticOptions, __: attrs.Attribute[Any], value: float | None) -> None:
    if value is not None and not value > 0:
        raise ValueError(f"expected a number above 0, or null for no limit, found {value}")


@attrs.frozen(kw_only=True)
class OptimOptions:
    """AdamW; its learning rate warms up linearly, stays, and decays."""

    lr: float = attrs.field(default=1e-6, converter=float, validator=[gt(0.0), lt(math.inf)])
    """Learning rate after the warm-up."""
    lr_unit: Unit = attrs.field(default="update", validator=in_(UNITS))
    """What the schedule counts, both from 1: `update`, optimizer updates; `step`, steps, all updates of which have the
    same learning rate."""
    lr_warmup: int = attrs.field(default=0, validator=[instance_of(int), ge(0)])
    """Units over which the learning rate rises linearly; the last of them has the full one."""
    lr_decay_start: int | None = attrs.field(default=None, validator=optional([instance_of(int), ge(0)]))
    """Units after which the learning rate falls; never if left out."""
    lr_decay: int = attrs.field(default=1, validator=[instance_of(int), ge(1), _begins])
    """Units over which it falls: the first of them still has the full one, the first behind them has the lowest."""
    lr_decay_shape: Shape = attrs.field(default="linear", validator=[in_(SHAPES), _begins])
    """How it falls: along a line, or along half a wave of a cosine."""
    min_lr_ratio: float = attrs.field(default=0.1, converter=float, validator=[ge(0.0), le(1.0), _begins])
    """What it falls to, over `lr`."""
    weight_decay: float = attrs.field(default=0.01, converter=float, validator=[ge(0.0), lt(math.inf)])
    """Decoupled weight decay."""
    beta1: float = attrs.field(default=0.9, converter=float, validator=[ge(0.0), lt(1.0)])
    """Decay of the gradient's running mean."""
    beta2: float = attrs.field(default=0.999, converter=float, validator=[ge(0.0), lt(1.0)])
    """Decay of the running mean of its square."""
    grad_clip: float = attrs.field(default=1.0, converter=float, validator=gt(0.0))
    """Largest norm of the gradient; a larger one is scaled down to it."""
    micro_batch_size: int | None = attrs.field(default=None, validator=_COUNT)
    """Answers in one forward and backward pass; bounds memory and changes no result. All at once if left out."""
    micro_batch_tokens: int | None = attrs.field(default=None, validator=[_COUNT, _one_budget])
    """Tokens in one forward and backward pass, prompts and padding counted, instead of `micro_batch_size`: answers are
    sorted by length, so that little is padding. An answer that is longer alone has a pass to itself."""

    @property
    def schedule(self) -> Schedule:
        """The learning rate over `lr`, by unit."""
        return Schedule(
            warmup=self.lr_warmup,
            decay_start=self.lr_decay_start,
            decay=self.lr_decay,
            shape=self.lr_decay_shape,
            floor=self.min_lr_ratio,
        )


@attrs.frozen(kw_only=True)
class CriticOptions:
    """The estimate of returns that `gae` needs."""

    use: Literal["none", "value_head", "model"] = attrs.field(
        default="none", validator=in_(("none", "value_head", "model"))
    )
    """`value_head`: a linear map of the policy's hidden states, which its loss trains too, at no further pass; `model`:
    a network of its own, with the architecture and first weights of the policy."""
    lr: float | None = attrs.field(default=None, validator=[optional([gt(0.0), lt(math.inf)]), _needs_a_critic])
    """Learning rate of its own parameters, on the schedule of `optim`; `optim.lr` if left out."""
    coeff: float = attrs.field(default=0.5, converter=float, validator=[gt(0.0), lt(math.inf), _needs_a_critic])
    """Weight of the value loss."""
    cliprange: float | None = attrs.field(default=0.5, validator=[_is_above_0_or_none, _needs_a_critic])
    """How far a value may move from what it was before the update until its gradient ends; null for no limit."""
    warmup_updates: int = attrs.field(default=0, validator=[instance_of(int), ge(0), _needs_a_critic])
    """First optimizer updates of the run in which the critic learns and the policy stays as it is. With
    `optim.lr_unit: update` the schedule of the policy begins behind them; steps are counted from the first one on."""
