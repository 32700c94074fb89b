"""What corrects for the sampler not having been the proximal policy, applied to the losses of tokens.

Nothing here shrinks a denominator: what is rejected has the loss 0 and still counts. Divergence, entropy and value
losses are not corrected.
"""

from __future__ import annotations

import attrs
import torch
from torch import Tensor

from hooktrainer.algorithms.divergence import divergence_sums
from hooktrainer.algorithms.masking import log_ratio_of
from hooktrainer.algorithms.options import AlgorithmOptions
from hooktrainer.algorithms.policy_losses import TokenLoss
from hooktrainer.algorithms.registry import Bound
from hooktrainer.algorithms.rejection import rejection
from hooktrainer.learner.batch import PaddedBatch
from hooktrainer.learner.update_metrics import DIVERGENCE


@attrs.frozen
class Correction:
    """A weight and criteria of rejection, on the ratio of proximal to behaviour policy."""

    _algorithm: AlgorithmOptions
    _weight: Bound | None

    def __call__(self, result: TokenLoss, proximal: Tensor, part: PaddedBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of each token, (b, t), and sums over tokens to be reported."""
        if self._algorithm.proximal_policy == "bypass":  # the ratio is 1
            return result.loss, {}
        loss, mask = result.loss, part.mask
        log_ratio = log_ratio_of(proximal, part.behaviour, mask)
        applied = result.stats.get("behaviour_weight")
        if self._weight is not None:
            applied = self._weight({"log_ratio": log_ratio, "mask": mask}).detach()
            loss = torch.where(applied == 0, 0.0, loss * applied)
        sums = {}
        if self._algorithm.rejection:
            keep = rejection(log_ratio, mask, self._algorithm.rejection)
            loss = torch.where(keep, loss, 0.0)
            applied = keep.to(loss.dtype) if applied is None else torch.where(keep, applied, 0.0)
            sums["rollout_corr/rollout_rs_masked_fraction"] = (mask & ~keep).sum()
        found = divergence_sums(log_ratio, mask, applied)
        return loss, sums | {f"{DIVERGENCE}{key}": value for key, value in found.items() if key != "tokens"}
