"""The `optim` section of a configuration."""

from __future__ import annotations

import attrs
from attrs.validators import ge, gt, instance_of, le, lt, optional


@attrs.frozen(kw_only=True)
class Optim:
    """AdamW; its learning rate warms up, stays, and decays, both linearly."""

    lr: float = attrs.field(default=1e-6, converter=float, validator=gt(0.0))
    """Learning rate after the warm-up."""
    lr_warmup_updates: int = attrs.field(default=0, validator=[instance_of(int), ge(0)])
    """Optimizer updates over which the learning rate rises from 0, linearly."""
    lr_decay_start: int | None = attrs.field(default=None, validator=optional([instance_of(int), ge(0)]))
    """Optimizer updates after which the learning rate falls, linearly; never if left out."""
    lr_decay_updates: int = attrs.field(default=1, validator=[instance_of(int), ge(1)])
    """Optimizer updates over which it falls."""
    min_lr_ratio: float = attrs.field(default=0.1, converter=float, validator=[ge(0.0), le(1.0)])
    """What it falls to, over `lr`."""
    weight_decay: float = attrs.field(default=0.01, converter=float, validator=ge(0.0))
    """Decoupled weight decay."""
    beta1: float = attrs.field(default=0.9, converter=float, validator=[ge(0.0), lt(1.0)])
    """Decay of the gradient's running mean."""
    beta2: float = attrs.field(default=0.999, converter=float, validator=[ge(0.0), lt(1.0)])
    """Decay of the running mean of its square."""
    grad_clip: float = attrs.field(default=1.0, converter=float, validator=gt(0.0))
    """Largest norm of the gradient; a larger one is scaled down to it."""
    micro_batch_size: int | None = attrs.field(default=None, validator=optional([instance_of(int), ge(1)]))
    """Answers in one forward and backward pass; bounds memory and changes no result. All at once if left out."""

    def lr_of(self, update: int) -> float:
        """The learning rate of an optimizer update, counted from 1."""
        risen = min(1.0, update / max(self.lr_warmup_updates, 1))
        since = 0 if self.lr_decay_start is None else max(0, update - self.lr_decay_start)
        fallen = min(1.0, since / self.lr_decay_updates)
        return self.lr * risen * (1.0 - fallen * (1.0 - self.min_lr_ratio))
