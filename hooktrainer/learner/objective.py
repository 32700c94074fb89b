"""The loss of some answers of a mini-batch: policy, divergence, entropy and value loss, and what is reported of them.

Every part is divided by the totals of the whole mini-batch over all ranks, so that losses and gradients of parts add
up. Shapes: b answers, t response tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import attrs
from torch import Tensor

from hooktrainer.algorithms.aggregation import token_mean
from hooktrainer.algorithms.kl import kl
from hooktrainer.algorithms.logprobs import entropy, log_policy, of_tokens
from hooktrainer.algorithms.masking import selected
from hooktrainer.algorithms.options import AlgorithmOptions
from hooktrainer.learner.critic import value_loss
from hooktrainer.learner.experience import Experience, Models
from hooktrainer.learner.forward import logits_of, states_of, trunk_of
from hooktrainer.learner.functions import Functions, constants
from hooktrainer.learner.micro_batches import Cut
from hooktrainer.learner.off_policy import Correction
from hooktrainer.learner.options import CriticOptions

if TYPE_CHECKING:
    from hooktrainer.learner.batch import PaddedBatch


@attrs.frozen(eq=False)
class Pass:
    """What one forward pass gives of each response token, with its graph; all of shape (b, t)."""

    logprobs: Tensor
    entropies: Tensor
    values: Tensor | None


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
        self._correction = Correction(algorithm, functions.weight)

    def __call__(self, made: Experience, cut: Cut, *, kl_coeff: float) -> tuple[Tensor, dict[str, Tensor]]:
        """The share of these answers in the loss, and sums over their tokens, detached."""
        part, mask = cut.part, cut.part.mask
        seen = self._forward(part)
        recomputed = None if made.proximal is None else cut.of(made.proximal)
        proximal = self._models.proximal.of(part, recomputed, seen.logprobs)
        result = self._policy_loss(
            {
                "logprobs": seen.logprobs,
                "proximal": proximal,
                "behaviour": part.behaviour,
                "advantages": cut.of(made.advantages),
                "mask": mask,
            }
        )
        drift = selected(seen.logprobs.detach(), mask) - selected(proximal, mask)
        stats = {**result.stats, "entropy": seen.entropies.detach(), "log_ratio_abs": drift.abs()}
        token_loss, corrected = self._correction(result, proximal, part)
        loss = pg_loss = self._total(token_loss, made, cut)
        sums = {"pg_loss": pg_loss.detach(), **corrected}
        if self._algorithm.entropy_coeff:
            loss = loss - self._algorithm.entropy_coeff * self._total(seen.entropies, made, cut)
        if made.reference is not None and self._algorithm.kl_in == "loss":
            divergence = self._divergence(seen.logprobs, cut.of(made.reference), part)
            kl_loss = self._total(divergence, made, cut)
            loss = loss + kl_coeff * kl_loss
            sums["kl_loss"], stats["kl"] = kl_loss.detach(), divergence.detach()
        if seen.values is not None:
            vf_loss, vf_stats = self._value_loss(seen.values, made, cut)
            loss = loss + self._critic.coeff * vf_loss
            sums["vf_loss"], stats = vf_loss.detach(), stats | vf_stats
        return loss, sums | {key: selected(value, mask).sum() for key, value in stats.items()}

    def _forward(self, part: PaddedBatch) -> Pass:
        models, critic = self._models, self._models.critic
        states = None
        if critic is not None and critic.own is None:
            states = states_of(models.policy, part)
            logits = trunk_of(models.policy).project(states)
        else:
            logits = logits_of(models.policy, part)
        policy = log_policy(logits, models.temperature)
        return Pass(
            logprobs=of_tokens(policy, part.responses),
            entropies=entropy(policy if self._algorithm.entropy_coeff else policy.detach()),
            values=None if critic is None else critic(part, states).to(policy.dtype),
        )

    def _total(self, values: Tensor, made: Experience, cut: Cut) -> Tensor:
        available: Mapping[str, object] = {
            "values": values,
            "mask": cut.part.mask,
            "totals": made.totals,
            "groups": made.groups[cut.rows],
            **self._constants,
        }
        return self._aggregation(available)  # type: ignore[no-any-return]

    def _divergence(self, logprobs: Tensor, reference: Tensor, part: PaddedBatch) -> Tensor:
        sampler = part.behaviour if self._algorithm.kl_off_policy_correction else None
        return kl(logprobs, reference, part.mask, estimator=self._algorithm.kl_estimator, behaviour=sampler)

    def _value_loss(self, values: Tensor, made: Experience, cut: Cut) -> tuple[Tensor, dict[str, Tensor]]:
        assert made.values is not None
        assert made.returns is not None
        mask, returns = cut.part.mask, cut.of(made.returns)
        result = value_loss(values, cut.of(made.values), returns, mask, cliprange=self._critic.cliprange)
        loss = token_mean(result.loss, mask, made.totals)
        # Variances are differences of these, which float32 does not resolve.
        returns = returns.double()
        error = returns - values.detach()
        moments = {"returns": returns, "returns_sq": returns.square(), "vf_error": error, "vf_error_sq": error.square()}
        return loss, {**result.stats, "values": values.detach(), **moments}
