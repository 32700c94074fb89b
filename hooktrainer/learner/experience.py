"""The experience of a mini-batch: everything that is computed before its first optimizer update and remains constant.

Nothing here has a gradient. Shapes: B answers, T response tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import attrs
import torch
from torch import Tensor, nn

from hooktrainer.algorithms.advantages import require_finite
from hooktrainer.algorithms.aggregation import Totals
from hooktrainer.algorithms.kl import kl
from hooktrainer.algorithms.masking import selected
from hooktrainer.algorithms.options import AlgorithmOptions
from hooktrainer.algorithms.returns import token_rewards
from hooktrainer.algorithms.shaping import overlong_penalty
from hooktrainer.errors import ConfigError, Fault, NonFiniteError
from hooktrainer.learner.batch import PaddedBatch
from hooktrainer.learner.critic import Critic
from hooktrainer.learner.distributed import Communicator
from hooktrainer.learner.forward import gather, hidden_states, response_scores
from hooktrainer.learner.functions import Functions
from hooktrainer.learner.micro_batches import MicroBatch
from hooktrainer.learner.proximal_policy import ProximalPolicy
from hooktrainer.learner.statistics import UpdateStatistics
from hooktrainer.models.scoring import Scoring

_OF_ANSWERS: Final = {"rewards", "groups", "lengths"}
"""Inputs of an advantage estimator that are known on the host."""


@attrs.frozen(eq=False, kw_only=True)
class Experience:
    """A mini-batch with its advantages; all tensors are (B, T) unless stated otherwise."""

    batch: PaddedBatch
    micro_batches: Sequence[MicroBatch]
    totals: Totals
    """Totals of all ranks."""
    groups: Tensor
    """Index of each answer's group among the groups of all ranks, shape (B,)."""
    proximal: Tensor | None
    """Log-probabilities of the proximal policy, if they were computed."""
    reference: Tensor | None
    """Log-probabilities of the reference model, if there is one."""
    values: Tensor | None
    """Values of the critic, if there is one."""
    advantages: Tensor
    returns: Tensor | None
    """Targets of the critic."""
    rewards: Tensor | None
    """Rewards of answers after shaping and penalties, shape (B,); None if they are the scores."""
    divergence: Tensor | None
    """Divergence from the reference, if the reward includes it."""

    def statistics(self) -> UpdateStatistics:
        """Return statistics of the advantages, rewards and divergence on this rank."""
        mask, statistics = self.batch.mask, UpdateStatistics()
        statistics.add("token_mean", {"critic/advantages/mean": selected(self.advantages, mask).sum()})
        _add_extremes(statistics, "critic/advantages", self.advantages, mask)
        if self.rewards is not None:
            answers = mask.any(dim=1)
            statistics.add("answer_mean", {"critic/rewards/mean": selected(self.rewards, answers).sum()})
            _add_extremes(statistics, "critic/rewards", self.rewards, answers)
        if self.divergence is not None:
            statistics.add("token_mean", {"actor/reward_kl_penalty": self.divergence.sum()})
        return statistics


def _add_extremes(statistics: UpdateStatistics, name: str, values: Tensor, mask: Tensor) -> None:
    statistics.add("max", {f"{name}/max": torch.where(mask, values, -torch.inf).amax()})
    statistics.add("min", {f"{name}/min": torch.where(mask, values, torch.inf).amin()})


@attrs.frozen(eq=False, kw_only=True)
class Models:
    """The networks of a learner."""

    policy: nn.Module
    proximal: ProximalPolicy
    reference: nn.Module | None
    """A frozen copy of the initial policy, if the algorithm needs one."""
    critic: Critic | None
    scoring: Scoring


class ExperienceMaker:
    """Computes the experience of a mini-batch."""

    def __init__(
        self,
        algorithm: AlgorithmOptions,
        functions: Functions,
        models: Models,
        *,
        max_response_length: int | None,
        communicator: Communicator,
    ) -> None:
        self._algorithm = algorithm
        self._models = models
        self._max_length = max_response_length
        self._communicator = communicator
        self._in_reward = models.reference is not None and algorithm.kl_in == "reward"
        self._estimate = functions.advantages

    @torch.no_grad()
    def __call__(
        self, batch: PaddedBatch, micro_batches: Sequence[MicroBatch], *, kl_coeff: float
    ) -> Experience | None:
        """Return the experience of a batch; None if no rank has a token to train on."""
        groups = batch.groups.tolist()
        totals, first = self._communicator.totals(batch.lengths.tolist(), groups, max(groups, default=-1) + 1)
        if not totals.tokens:
            return None
        proximal, reference, values = self._forward_passes(batch, micro_batches)
        divergence = None
        if self._in_reward:
            assert reference is not None
            anchor = batch.behaviour if proximal is None else proximal
            divergence = kl(anchor, reference, batch.mask, estimator=self._algorithm.kl_estimator)
        rewards, advantages, returns = self._advantages(batch, values, divergence, kl_coeff)
        return Experience(
            batch=batch,
            micro_batches=micro_batches,
            totals=totals,
            groups=torch.from_numpy(batch.groups + first).to(batch.mask.device),
            proximal=proximal,
            reference=reference,
            values=values,
            advantages=advantages[:, None].expand(batch.mask.shape) if advantages.dim() == 1 else advantages,
            returns=returns,
            rewards=None if rewards is batch.scores else rewards.to(batch.behaviour.device, batch.behaviour.dtype),
            divergence=divergence,
        )

    def _advantages(
        self, batch: PaddedBatch, values: Tensor | None, divergence: Tensor | None, kl_coeff: float
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return rewards (B,), advantages (B,) or (B, T), and the returns (B, T) for a critic."""
        rewards, of_tokens, inputs = self._rewards(batch), None, self._estimate.inputs
        # An estimator that reads whole answers only runs on the host, where they are: no wait for the device.
        # It runs in float64, in which differences of large scores are not lost.
        of_answers = divergence is None and not inputs - _OF_ANSWERS
        device, dtype = batch.behaviour.device, batch.behaviour.dtype
        if of_answers:
            device, dtype = rewards.device, rewards.dtype
        if "token_rewards" in inputs or divergence is not None:
            of_tokens = token_rewards(rewards.to(device, dtype), batch.mask, divergence, kl_coeff=kl_coeff)
        if divergence is not None:  # an answer without a token keeps its score
            rewards = rewards.to(device, dtype) - kl_coeff * divergence.sum(dim=1)
        self._require_finite(rewards)
        result = self._estimate(
            {
                "rewards": rewards.to(device, dtype),
                "groups": torch.from_numpy(batch.groups).to(device),
                "lengths": torch.from_numpy(batch.lengths).to(device),
                "mask": batch.mask,
                "token_rewards": of_tokens,
                "values": values,
                "reduce": self._communicator.sum,
            }
        )
        advantages, returns = result if isinstance(result, tuple) else (result, None)
        if values is not None and returns is None:
            fault = f"'{self._algorithm.adv_estimator}' returns no targets for the critic; choose gae, or use: none"
            raise ConfigError([Fault("critic.use", fault)])
        return rewards, advantages.to(batch.behaviour.device, batch.behaviour.dtype), returns

    def _require_finite(self, rewards: Tensor) -> None:
        """Raise on every rank if a reward is not finite on any of them, so that no rank waits for another."""
        if self._communicator.size > 1 and self._communicator.any(not bool(torch.isfinite(rewards).all())):
            require_finite(rewards)
            raise NonFiniteError("a reward of another rank is not finite; no advantage can be computed from it")

    def _forward_passes(
        self, batch: PaddedBatch, parts: Sequence[MicroBatch]
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Return log-probabilities of the proximal policy and the reference, and values, as far as they are needed."""
        models, proximal, reference, values = self._models, None, None, None
        if models.proximal.recomputes:
            proximal = self._logprobs(models.proximal.module, batch, parts)
        if models.reference is not None:
            reference = self._logprobs(models.reference, batch, parts)
        if (critic := models.critic) is not None:
            values = gather(
                parts,
                batch.behaviour,
                lambda part: critic(part, None if critic.own is not None else hidden_states(models.policy, part)),
            )
        return proximal, reference, values

    def _logprobs(self, module: nn.Module, batch: PaddedBatch, parts: Sequence[MicroBatch]) -> Tensor:
        """Return log-probabilities of the responses, shape (B, T)."""
        scoring = self._models.scoring
        return gather(parts, batch.behaviour, lambda part: response_scores(module, part, scoring).logprobs)

    def _rewards(self, batch: PaddedBatch) -> Tensor:
        """Return the scores minus the penalty for answers close to the maximum length, shape (B,)."""
        if self._algorithm.overlong_buffer is None:
            return batch.scores
        assert self._max_length is not None
        penalty = overlong_penalty(
            torch.from_numpy(batch.response_lengths),
            max_length=self._max_length,
            buffer=self._algorithm.overlong_buffer,
            factor=self._algorithm.overlong_penalty_factor,
        )
        return batch.scores + penalty.to(batch.scores.dtype)
