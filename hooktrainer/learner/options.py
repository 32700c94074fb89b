"""The `optim`, `critic` and `learner` sections of a configuration."""

from __future__ import annotations

import math
from typing import Any, Literal

import attrs
from attrs.validators import ge, gt, in_, instance_of, le, lt, optional

from hooktrainer._util.durations import is_duration
from hooktrainer.learner.schedule import SHAPES, UNITS, Schedule, Shape, Unit

_COUNT = optional([instance_of(int), ge(1)])


def _one_budget(optim: OptimOptions, _attribute: attrs.Attribute[Any], tokens: int | None) -> None:
    if tokens is not None and optim.micro_batch_size is not None:
        raise ValueError(
            f"micro_batch_size = {optim.micro_batch_size} and micro_batch_tokens = {tokens} both set the size of a "
            "micro-batch; leave one of them out"
        )


def _needs_decay_start(optim: OptimOptions, key: attrs.Attribute[Any], value: object) -> None:
    if optim.lr_decay_start is None and value != key.default:
        raise ValueError(f"{value} has no effect without lr_decay_start; with 0 the decay starts in the first unit")


def _needs_a_critic(critic: CriticOptions, key: attrs.Attribute[Any], value: float | None) -> None:
    if value != key.default and critic.use == "none":
        raise ValueError(f"{value} has no effect with use: none; choose value_head or model")


def _is_above_0_or_none(_: CriticOptions, __: attrs.Attribute[Any], value: float | None) -> None:
    if value is not None and not value > 0:
        raise ValueError(f"expected a number above 0, or null for no limit, found {value}")


@attrs.frozen(kw_only=True)
class OptimOptions:
    """AdamW with a learning rate that warms up linearly, stays constant, and decays."""

    lr: float = attrs.field(default=1e-6, converter=float, validator=[gt(0.0), lt(math.inf)])
    """Learning rate after the warm-up."""
    lr_unit: Unit = attrs.field(default="update", validator=in_(UNITS))
    """Unit of the schedule, counted from 1: `update`, optimizer updates; `step`, steps. All updates of a step have the
    same learning rate then."""
    lr_warmup: int = attrs.field(default=0, validator=[instance_of(int), ge(0)])
    """Units over which the learning rate rises linearly. The last of them has the full rate."""
    lr_decay_start: int | None = attrs.field(default=None, validator=optional([instance_of(int), ge(0)]))
    """Units after which the learning rate decays. No decay if left out."""
    lr_decay: int = attrs.field(default=1, validator=[instance_of(int), ge(1), _needs_decay_start])
    """Units over which it decays. The first of them has the full rate, the first one after them the lowest."""
    lr_decay_shape: Shape = attrs.field(default="linear", validator=[in_(SHAPES), _needs_decay_start])
    """Shape of the decay: `linear`, or `cosine` for half a period."""
    min_lr_ratio: float = attrs.field(default=0.1, converter=float, validator=[ge(0.0), le(1.0), _needs_decay_start])
    """Lowest learning rate, relative to `lr`."""
    weight_decay: float = attrs.field(default=0.01, converter=float, validator=[ge(0.0), lt(math.inf)])
    """Decoupled weight decay."""
    beta1: float = attrs.field(default=0.9, converter=float, validator=[ge(0.0), lt(1.0)])
    """Decay of the running mean of the gradient."""
    beta2: float = attrs.field(default=0.999, converter=float, validator=[ge(0.0), lt(1.0)])
    """Decay of the running mean of the squared gradient."""
    grad_clip: float = attrs.field(default=1.0, converter=float, validator=gt(0.0))
    """Maximum norm of the gradient; a larger gradient is scaled down to it."""
    micro_batch_size: int | None = attrs.field(default=None, validator=_COUNT)
    """Answers in one forward and backward pass. It limits memory and changes no result. All answers if left out."""
    micro_batch_tokens: int | None = attrs.field(default=None, validator=[_COUNT, _one_budget])
    """Tokens in one forward and backward pass, with prompts and padding, instead of `micro_batch_size`. Answers are
    sorted by length to reduce padding. A longer answer has its own pass."""

    @property
    def schedule(self) -> Schedule:
        """Return the schedule of the learning rate, relative to `lr`."""
        return Schedule(
            warmup=self.lr_warmup,
            decay_start=self.lr_decay_start,
            decay=self.lr_decay,
            shape=self.lr_decay_shape,
            floor=self.min_lr_ratio,
        )


@attrs.frozen(kw_only=True)
class LearnerOptions:
    """The processes of the learner."""

    ranks: int = attrs.field(default=1, validator=[instance_of(int), ge(1)])
    """Number of processes that train, all on this machine. `hooktrainer fit` starts them. `torchrun`, which also starts
    processes on other machines, sets the number itself."""
    timeout_s: float = attrs.field(default=600.0, validator=is_duration)
    """Seconds for all ranks to meet, and for each of their collectives, before the run fails. A rank that has ended is
    noticed at once."""


@attrs.frozen(kw_only=True)
class CriticOptions:
    """The critic, whose estimates of returns `gae` needs."""

    use: Literal["none", "value_head", "model"] = attrs.field(
        default="none", validator=in_(("none", "value_head", "model"))
    )
    """`value_head`: a linear map of the hidden states of the policy, which needs no further pass; the value loss trains
    the policy, too. `model`: a separate network with the architecture and initial weights of the policy."""
    lr: float | None = attrs.field(default=None, validator=[optional([gt(0.0), lt(math.inf)]), _needs_a_critic])
    """Learning rate of the parameters of the critic, on the schedule of `optim`. `optim.lr` if left out."""
    coeff: float = attrs.field(default=0.5, converter=float, validator=[gt(0.0), lt(math.inf), _needs_a_critic])
    """Weight of the value loss."""
    cliprange: float | None = attrs.field(default=0.5, validator=[_is_above_0_or_none, _needs_a_critic])
    """Distance from the value before the update beyond which a value has no gradient; null for no limit."""
    warmup_updates: int = attrs.field(default=0, validator=[instance_of(int), ge(0), _needs_a_critic])
    """Optimizer updates at the start of a run that train the critic only. With `optim.lr_unit: update` the schedule of
    the policy starts after them; steps are counted from the first one."""
