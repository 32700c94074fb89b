"""One fixed text that learner and engines have to score alike: the last check that a version is in use."""

from __future__ import annotations

import attrs
import numpy as np

from hooktrainer.errors import SyncError
from hooktrainer.groups import Floats, Tokens


@attrs.frozen(eq=False, kw_only=True)
class Canary:
    """What the learner says of the text.

    Bytes that arrived are not yet weights in use: an engine can keep a head that it once copied, or the results of a
    prefix cache, or lay an adapter over weights that contain it already.
    """

    tokens: Tokens
    """Shape (L,), L ≥ 2."""
    logprobs: Floats
    """The learner's log-probability of each token given those before it. Shape (L - 1,)."""
    atol: float
    """Largest difference, in nats."""

    def __attrs_post_init__(self) -> None:
        if self.logprobs.shape != (len(self.tokens) - 1,) or not self.logprobs.size:
            raise SyncError(
                f"the learner gave log-probabilities of shape {self.logprobs.shape} for a canary of {len(self.tokens)} "
                "tokens; one for each token but the first was expected"
            )
        if np.isnan(self.logprobs).any():
            raise SyncError("the learner's own log-probabilities are NaN: these weights are not published")

    def compare(self, found: Floats, who: str) -> float:
        """The largest difference. Raises `SyncError` if it is above `atol`.

        `found` has the shape (L - 1,), or (R, L - 1) from R places that hold weights.
        """
        rows = np.atleast_2d(np.asarray(found, dtype=np.float64))
        if rows.shape[1:] != self.logprobs.shape or not len(rows):
            expected = f"{self.logprobs.shape}, or one such row for each place that holds weights"
            raise SyncError(f"{who} gave log-probabilities of shape {np.shape(found)} for the canary, not {expected}")
        same = rows == self.logprobs  # two infinities are, and their difference is not 0
        differences = np.where(same, 0.0, np.abs(np.where(same, 0.0, rows) - np.where(same, 0.0, self.logprobs)))
        worst = float(np.max(differences))
        if not worst <= self.atol:  # NaN is not
            row, place = np.unravel_index(np.argmax(np.nan_to_num(differences, nan=np.inf)), differences.shape)
            raise SyncError(
                f"{who} does not use the weights that it confirmed: of the canary's token {place + 1} (id "
                f"{self.tokens[place + 1]}) its log-probability is {rows[row, place]:.6g}, the learner's "
                f"{self.logprobs[place]:.6g}, a difference of {differences[row, place]:.3g} where canary_atol allows "
                f"{self.atol:g}. A head, a tied embedding or a cache that was kept does this, or an adapter missing or "
                "applied twice; an engine of lower precision needs a larger canary_atol"
            )
        return worst
