"""What is known of a mini-batch before its first optimizer update, and stays as it is over all of them.

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
from hooktrainer.learner.distributed import Ranks
from hooktrainer.learner.forward import logprobs_of, over_all, states_of
from hooktrainer.learner.functions import Functions
from hooktrainer.learner.micro_batches import Cut
from hooktrainer.learner.proximal import ProximalPolicy
from hooktrainer.models.policy import in_eval_mode

_OF_ANSWERS: Final = {"rewards", "groups", "lengths"}


@attrs.frozen(eq=False, kw_only=True)
class Experience:
    """A mini-batch with its advantages; all tensors but `groups` are (B, T)."""

    batch: PaddedBatch
    cuts: Sequence[Cut]
    totals: Totals
    """Of all ranks."""
    groups: Tensor
    """Number of each answer's group among those of all ranks, shape (B,)."""
    proximal: Tensor | None
    """Log-probabilities of the proximal policy, if they were computed."""
    reference: Tensor | None
    """Those of the reference model, if there is one."""
    values: Tensor | None
    """The critic's, if there is one."""
    advantages: Tensor
    returns: Tensor | None
    """What the critic learns."""
    rewards: Tensor | None
    """Sums over the tokens of each answer after shaping and penalties, if there are any; shape (B,)."""
    divergence: Tensor | None
    """From the reference, if the reward has it."""

    def sums(self) -> dict[str, Tensor]:
        """Sums over answers and tokens, to be reported."""
        mask = self.batch.mask
        found = {"critic/advantages/mean": selected(self.advantages, mask).sum()}
        if self.rewards is not None:
            found["critic/rewards/mean"] = selected(self.rewards, mask.any(dim=1)).sum()
        if self.divergence is not None:
            found["reward_kl_penalty"] = self.divergence.sum()
        return found

    def extremes(self) -> dict[str, Tensor]:
        """Of answers and tokens of this rank, to be reported; nothing if there are none."""
        mask = self.batch.mask
        if not self.batch.lengths.any():
            return {}
        found = _extremes("critic/advantages", self.advantages, mask)
        return found if self.rewards is None else found | _extremes("critic/rewards", self.rewards, mask.any(dim=1))


def _extremes(key: str, values: Tensor, mask: Tensor) -> dict[str, Tensor]:
    return {
        f"{key}/max": torch.where(mask, values, -torch.inf).amax(),
        f"{key}/min": torch.where(mask, values, torch.inf).amin(),
    }


@attrs.frozen(eq=False, kw_only=True)
class Models:
    """The networks of a learner."""

    policy: nn.Module
    proximal: ProximalPolicy
    reference: nn.Module | None
    """Frozen, as the policy was at first."""
    critic: Critic | None
    temperature: float


class Preparation:
    """Makes experience of batches."""

    def __init__(
        self,
        algorithm: AlgorithmOptions,
        functions: Functions,
        models: Models,
        *,
        max_response_length: int | None,
        ranks: Ranks,
    ) -> None:
        self._algorithm = algorithm
        self._models = models
        self._max_length = max_response_length
        self._ranks = ranks
        self._in_reward = models.reference is not None and algorithm.kl_in == "reward"
        self._estimate = functions.advantages

    @torch.no_grad()
    def __call__(self, batch: PaddedBatch, cuts: Sequence[Cut], *, kl_coeff: float) -> Experience | None:
        """All passes, and all that is counted over the whole mini-batch; None if no rank has a token to train on."""
        groups = batch.groups.tolist()
        totals, first = self._ranks.totals(batch.lengths.tolist(), groups, max(groups, default=-1) + 1)
        if not totals.tokens:
            return None
        proximal, reference, values = self._passes(batch, cuts)
        divergence = None
        if self._in_reward:
            assert reference is not None
            anchor = batch.behaviour if proximal is None else proximal
            divergence = kl(anchor, reference, batch.mask, estimator=self._algorithm.kl_estimator)
        rewards, advantages, returns = self._judge(batch, values, divergence, kl_coeff)
        return Experience(
            batch=batch,
            cuts=cuts,
            totals=totals,
            groups=torch.from_numpy(batch.groups + first).to(batch.mask.device),
            proximal=proximal,
            reference=reference,
            values=values,
            advantages=advantages[:, None].expand(batch.mask.shape) if advantages.dim() == 1 else advantages,
            returns=returns,
            rewards=None if rewards is batch.scores else rewards.to(batch.mask.device),
            divergence=divergence,
        )

    def _judge(
        self, batch: PaddedBatch, values: Tensor | None, divergence: Tensor | None, kl_coeff: float
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Rewards (B,), advantages (B,) or (B, T), and the returns (B, T) that a critic learns."""
        rewards, of_tokens, asked = self._rewards(batch), None, self._estimate.inputs
        # What looks at whole answers only is worked out where these are, so that the device need not be waited for.
        device = batch.mask.device if divergence is not None or asked - _OF_ANSWERS else batch.scores.device
        if "token_rewards" in asked or divergence is not None:
            of_tokens = token_rewards(rewards.to(device), batch.mask, divergence, kl_coeff=kl_coeff)
        if divergence is not None:  # an answer without a token keeps its score
            rewards = rewards.to(device) - kl_coeff * divergence.sum(dim=1)
        self._require_finite(rewards)
        found = self._estimate(
            {
                "rewards": rewards.to(device),
                "groups": torch.from_numpy(batch.groups).to(device),
                "lengths": torch.from_numpy(batch.lengths).to(device),
                "mask": batch.mask,
                "token_rewards": of_tokens,
                "values": values,
                "reduce": self._ranks.sum,
            }
        )
        advantages, returns = found if isinstance(found, tuple) else (found, None)
        if values is not None and returns is None:
            fault = f"'{self._algorithm.adv_estimator}' gives no returns for a critic to learn; take gae, or use: none"
            raise ConfigError([Fault("critic.use", fault)])
        return rewards, advantages.to(batch.mask.device), returns

    def _require_finite(self, rewards: Tensor) -> None:
        """Whatever is not finite on one rank is an error on all, so that none waits for another."""
        if self._ranks.size > 1 and self._ranks.any(not bool(torch.isfinite(rewards).all())):
            require_finite(rewards)
            raise NonFiniteError("a reward of another rank is not finite, of which no advantage can be made")

    def _passes(self, batch: PaddedBatch, cuts: Sequence[Cut]) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Log-probabilities of proximal policy and reference, and values, as far as they are needed."""
        models, proximal, reference, values = self._models, None, None, None
        if models.proximal.recomputes:
            module = models.proximal.module
            with in_eval_mode(module):
                proximal = over_all(cuts, batch.behaviour, lambda part: logprobs_of(module, part, models.temperature))
        if (frozen := models.reference) is not None:
            reference = over_all(cuts, batch.behaviour, lambda part: logprobs_of(frozen, part, models.temperature))
        if (critic := models.critic) is not None:
            with in_eval_mode(models.policy, critic):
                values = over_all(
                    cuts,
                    batch.behaviour,
                    lambda part: critic(part, None if critic.own is not None else states_of(models.policy, part)),
                )
        return proximal, reference, values

    def _rewards(self, batch: PaddedBatch) -> Tensor:
        """Scores, less the penalty of answers that are nearly too long."""
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
