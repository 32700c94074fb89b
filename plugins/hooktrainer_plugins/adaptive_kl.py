"""Adapt the KL coefficient to keep the divergence from the reference model near a target."""

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
"""Keys of the mean divergence over tokens, as a term of the loss or of the reward."""
MAX_ERROR: Final = 0.2
"""Relative errors are clipped to this range, in both directions."""


@attrs.define(kw_only=True)
class AdaptiveKL(Plugin):
    """Increase the KL coefficient above the target divergence and decrease it below, by proportional control.

    After each update, coefficient x (1 + error x min(samples / horizon, 1)), where error is |divergence| / target - 1
    within ±0.2. An estimate can be negative, so its size counts. Source: Ziegler et al. (1909.08593) §2.2.
    """

    target: float = attrs.field(default=0.1, converter=float, validator=attrs.validators.gt(0.0))
    """Target divergence in nats per token, for any `algorithm.loss_agg_mode`, measured with the KL estimator of the
    algorithm."""

    horizon: int = attrs.field(default=10_000, validator=attrs.validators.ge(1))
    """Number of trajectories over which a relative error of 1 would double the coefficient."""

    control: KLControl = port()

    def check(self, config: Config) -> Iterable[str]:
        """Reject a configuration without a KL term."""
        if not config.algorithm.kl_coeff:
            yield "algorithm.kl_coeff is 0, so there is no reference model and no KL term. Set an initial coefficient."

    @on(IterationEnd, priority=Priority.COLLECT, needs=["iteration.metrics"], makes=["learner.kl_coeff"])
    def adapt(self, event: IterationEnd) -> None:
        """Adapt the coefficient to the divergence of this update."""
        for key in MEASURED:
            value = plain(event.metrics.get(key))
            if isinstance(value, (int, float)) and value == value:  # noqa: PLR0124 (NaN for an update without tokens)
                error = min(max(abs(value) / self.target - 1.0, -MAX_ERROR), MAX_ERROR)
                self.control.kl_coeff *= 1.0 + error * min(event.samples / self.horizon, 1.0)
