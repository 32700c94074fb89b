"""The loss of a micro-batch: policy, divergence, entropy and value loss, and its statistics.

Every part is divided by the totals of the whole mini-batch over all ranks, so that the losses and gradients of
micro-batches add up. Shapes: b answers, t response tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import attrs
from torch import Tensor

from hooktrainer.algorithms.aggregation import token_mean
from hooktrainer.algorithms.kl import kl
from hooktrainer.algorithms.masking import selected
from hooktrainer.algorithms.options import AlgorithmOptions
from hooktrainer.algorithms.stats import as_stat
from hooktrainer.learner.critic import value_loss
from hooktrainer.learner.experience import Experience, Models
from hooktrainer.learner.forward import response_scores
from hooktrainer.learner.functions import Functions, constants
from hooktrainer.learner.micro_batches import MicroBatch
from hooktrainer.learner.off_policy import OffPolicyCorrection
from hooktrainer.learner.options import CriticOptions
from hooktrainer.learner.statistics import UpdateStatistics
from hooktrainer.models.scoring import Entropy

if TYPE_CHECKING:
    from hooktrainer.learner.batch import PaddedBatch


@attrs.frozen(eq=False)
class ForwardOutput:
    """Results of one forward pass for each response token, with their graph; all of shape (b, t)."""

    logprobs: Tensor
    entropies: Tensor
    values: Tensor | None
    """Values of the critic, if there is one."""


class Objective:
    """The loss that the configuration describes."""

    def __init__(
        self,
        algorithm: AlgorithmOptions,
        functions: Functions,
        critic: CriticOptions,
        models: Models,
        *,
        max_response_length: int | None,
    ) -> None:
        self._algorithm = algorithm
        self._critic = critic
        self._models = models
        self._constants = constants(max_response_length)
        self._policy_loss, self._aggregation = functions.policy_loss, functions.aggregation
        self._correction = OffPolicyCorrection(algorithm, functions.weight)

    def __call__(
        self, experience: Experience, micro_batch: MicroBatch, *, kl_coeff: float
    ) -> tuple[Tensor, UpdateStatistics]:
        """Return the share of a micro-batch in the loss, and its statistics, which are detached."""
        part, mask = micro_batch.part, micro_batch.part.mask
        output = self._forward(part)
        recomputed = None if experience.proximal is None else micro_batch.select(experience.proximal)
        proximal = self._models.proximal.logprobs(part, recomputed, output.logprobs)
        result = self._policy_loss(
            {
                "logprobs": output.logprobs,
                "proximal": proximal,
                "behaviour": part.behaviour,
                "advantages": micro_batch.select(experience.advantages),
                "mask": mask,
            }
        )
        token_loss, statistics = self._correction(result, proximal, part)
        for key, stat in result.stats.items():
            statistics.add_token_stat(key, as_stat(stat), mask)
        loss = pg_loss = self._total(token_loss, experience, micro_batch)
        losses = {"actor/pg_loss": pg_loss.detach()}
        drift = selected(output.logprobs.detach(), mask) - selected(proximal, mask)
        means = {"actor/entropy": output.entropies.detach(), "actor/log_ratio_abs": drift.abs()}
        if self._algorithm.entropy_coeff:
            loss = loss - self._algorithm.entropy_coeff * self._total(output.entropies, experience, micro_batch)
        if experience.reference is not None and self._algorithm.kl_in == "loss":
            divergence = self._divergence(output.logprobs, micro_batch.select(experience.reference), part)
            kl_loss = self._total(divergence, experience, micro_batch)
            loss = loss + kl_coeff * kl_loss
            losses["actor/kl_loss"], means["actor/kl"] = kl_loss.detach(), divergence.detach()
        statistics.add("policy_loss", losses)
        statistics.add("token_mean", {name: selected(value, mask).sum() for name, value in means.items()})
        if output.values is not None:
            vf_loss = self._value_loss(output.values, experience, micro_batch, statistics)
            loss = loss + self._critic.coeff * vf_loss
        return loss, statistics

    def _forward(self, part: PaddedBatch) -> ForwardOutput:
        models, critic = self._models, self._models.critic
        entropy: Entropy = "differentiable" if self._algorithm.entropy_coeff else "detached"
        scores = response_scores(models.policy, part, models.scoring, entropy)
        assert scores.entropies is not None
        values = None if critic is None else critic(part, scores.states).to(scores.logprobs.dtype)
        return ForwardOutput(scores.logprobs, scores.entropies, values)

    def _total(self, values: Tensor, experience: Experience, micro_batch: MicroBatch) -> Tensor:
        """Aggregate values of tokens, (b, t) -> ()."""
        available: Mapping[str, object] = {
            "values": values,
            "mask": micro_batch.part.mask,
            "totals": experience.totals,
            "groups": experience.groups[micro_batch.rows],
            **self._constants,
        }
        return self._aggregation(available)  # type: ignore[no-any-return]

    def _divergence(self, logprobs: Tensor, reference: Tensor, part: PaddedBatch) -> Tensor:
        sampler = part.behaviour if self._algorithm.kl_off_policy_correction else None
        return kl(logprobs, reference, part.mask, estimator=self._algorithm.kl_estimator, behaviour=sampler)

    def _value_loss(
        self, values: Tensor, experience: Experience, micro_batch: MicroBatch, statistics: UpdateStatistics
    ) -> Tensor:
        assert experience.values is not None
        assert experience.returns is not None
        mask, returns = micro_batch.part.mask, micro_batch.select(experience.returns)
        before = micro_batch.select(experience.values)
        result = value_loss(values, before, returns, mask, cliprange=self._critic.cliprange)
        loss = token_mean(result.loss, mask, experience.totals)
        # Variances are differences of these sums, which float32 does not resolve.
        returns = returns.double()
        error = returns - values.detach()
        moments = {"returns": returns, "returns_sq": returns.square(), "vf_error": error, "vf_error_sq": error.square()}
        sums = {name: selected(value, mask).sum() for name, value in moments.items()}
        values_sum = selected(values.detach(), mask).sum()
        clipped = selected(as_stat(result.stats["vf_clipfrac"]).values, mask).sum()
        statistics.add("value_loss", {"critic/vf_loss": loss.detach()})
        statistics.add("term", sums)
        means = {"values/mean": values_sum, "returns/mean": sums["returns"], "vf_clipfrac": clipped}
        statistics.add("token_mean", {f"critic/{name}": value for name, value in means.items()})
        return loss
