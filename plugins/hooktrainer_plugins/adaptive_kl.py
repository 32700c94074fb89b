"""Keep the divergence from the reference model near a target, by its coefficient."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import attrs

from hooktrainer import Plugin, Priority, on
from hooktrainer.events import IterationEnd
from hooktrainer.metrics import plain
from hooktrainer.plugin import port
from hooktrainer.ports import KLControl

if TYPE_CHECKING:
    from hooktrainer import Config

MEASURED: Final = ("actor/kl", "actor/reward_kl_penalty")
"""Where a learner reports the mean of the divergence over tokens, if it is in the loss or in the reward."""
MAX_ERROR: Final = 0.2
"""Relative errors count no more than this, either way."""


@attrs.define(kw_only=True)
class AdaptiveKL(Plugin):
    """Raise the coefficient of the divergence while it is above the target, and lower it below: proportional control.

    After each update, coefficient x (1 + error x min(samples / horizon, 1)), where error is divergence / target - 1
    within ±0.2. Source: Ziegler et al. (1909.08593) §2.2.
    """

    target: float = attrs.field(default=0.1, converter=float, validator=attrs.validators.gt(0.0))
    """Divergence to be kept, in nats a token whatever `algorithm.loss_agg_mode` is, in the estimator of the algorithm.
    """

    horizon: int = attrs.field(default=10_000, validator=attrs.validators.ge(1))
    """Trajectories over which an error of 1 would double the coefficient."""

    control: KLControl = port()

    def check(self, config: Config) -> Iterable[str]:
        """Refuse to steer what is off."""
        if not config.algorithm.kl_coeff:
            yield "algorithm.kl_coeff is 0: there is no reference model, and nothing to steer. Set it to a first value."

    @on(IterationEnd, priority=Priority.COLLECT, needs=["iteration.metrics"])
    def steer(self, event: IterationEnd) -> None:
        """Move the coefficient by the divergence of this update."""
        for key in MEASURED:
            value = plain(event.metrics.get(key))
            if isinstance(value, (int, float)) and value == value:  # noqa: PLR0124 (an update without tokens says NaN)
                error = min(max(value / self.target - 1.0, -MAX_ERROR), MAX_ERROR)
                self.control.kl_coeff *= 1.0 + error * min(event.samples / self.horizon, 1.0)
