"""Correction of the policy loss for the difference between the sampler and the proximal policy.

A rejected token has the loss 0 and still counts in every denominator. Divergence, entropy and value
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
from hooktrainer.algorithms.stats import as_stat
from hooktrainer.learner.batch import PaddedBatch
from hooktrainer.learner.statistics import UpdateStatistics
from hooktrainer.learner.update_metrics import DIVERGENCE


@attrs.frozen
class OffPolicyCorrection:
    """A weight and rejection criteria, computed from the ratio of proximal to behaviour policy."""

    _algorithm: AlgorithmOptions
    _weight: Bound | None

    def __call__(self, result: TokenLoss, proximal: Tensor, part: PaddedBatch) -> tuple[Tensor, UpdateStatistics]:
        """Return the corrected loss of each token, shape (b, t), and statistics of the correction."""
        statistics = UpdateStatistics()
        if self._algorithm.proximal_policy == "bypass":  # the ratio is 1
            return result.loss, statistics
        loss, mask = result.loss, part.mask
        log_ratio = log_ratio_of(proximal, part.behaviour, mask)
        reported = result.stats.get("behaviour_weight")
        applied = None if reported is None else as_stat(reported).values
        if self._weight is not None:
            applied = self._weight({"log_ratio": log_ratio, "mask": mask}).detach()
            loss = torch.where(applied == 0, 0.0, loss * applied)
        if self._algorithm.rejection:
            keep = rejection(log_ratio, mask, self._algorithm.rejection)
            loss = torch.where(keep, loss, 0.0)
            applied = keep.to(loss.dtype) if applied is None else torch.where(keep, applied, 0.0)
            statistics.add("token_mean", {"rollout_corr/rollout_rs_masked_fraction": (mask & ~keep).sum()})
        sums = divergence_sums(log_ratio, mask, applied)
        statistics.add("term", {f"{DIVERGENCE}{key}": value for key, value in sums.items() if key != "tokens"})
        return loss, statistics
