"""The learner of the GRPO and PPO family: policy-gradient updates with AdamW, with or without a critic."""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping, Sequence
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

from hooktrainer.algorithms.options import AlgorithmOptions
from hooktrainer.errors import ConfigError, Fault, NonFiniteError
from hooktrainer.learner.batch import PaddedBatch
from hooktrainer.learner.batch_metrics import batch_metrics
from hooktrainer.learner.critic import Critic
from hooktrainer.learner.distributed import Communicator
from hooktrainer.learner.experience import Experience, ExperienceMaker, Models
from hooktrainer.learner.forward import as_trunk, frozen_copy
from hooktrainer.learner.functions import Functions
from hooktrainer.learner.micro_batches import split
from hooktrainer.learner.objective import Objective
from hooktrainer.learner.optimizer import Optimizer
from hooktrainer.learner.options import CriticOptions, OptimOptions
from hooktrainer.learner.proximal_policy import ProximalPolicy
from hooktrainer.learner.state import learner_state, restore
from hooktrainer.learner.statistics import Key, UpdateStatistics
from hooktrainer.learner.update_metrics import is_finite, update_metrics
from hooktrainer.metrics import Last, Metric, Sum
from hooktrainer.models.lora import merged_state
from hooktrainer.models.policy import in_eval_mode
from hooktrainer.models.preparation import prepare_policy
from hooktrainer.models.scoring import Scoring, text_logprobs
from hooktrainer.ports import Floats, Group, Tokens

if TYPE_CHECKING:
    from hooktrainer.ports import Weights

_LOG: Final = logging.getLogger("hooktrainer")


class PolicyGradientLearner:
    """Trains a policy on groups of scored answers and, if configured, a critic.

    Weights of the policy in half precision are converted to float32 in place.

    `iterations_per_step` is P. `max_response_length` is the limit of the sampler, which the overlong penalty and the
    aggregation by a constant length need. Raises `ConfigError` if an algorithm needs an input that is not available, or
    if equal passes of the policy give different results.
    """

    skips_nonfinite: bool = False
    """Whether an update whose loss or gradient is not finite is skipped and counted, instead of raised."""

    def __init__(
        self,
        policy: nn.Module,
        *,
        algorithm: AlgorithmOptions,
        optim: OptimOptions,
        critic: CriticOptions | None = None,
        temperature: float = 1.0,
        pad_id: int = 0,
        max_response_length: int | None = None,
        iterations_per_step: int = 1,
        communicator: Communicator | None = None,
    ) -> None:
        critic, self._communicator = critic or CriticOptions(), communicator or Communicator()
        self._module = policy
        self._pad_id = pad_id
        self._algorithm, self._optim, self._critic = algorithm, optim, critic
        if critic.use != "none":
            as_trunk(policy)  # raises for a model without hidden states
        scoring = Scoring(temperature, prepare_policy(policy, uses_states=critic.use == "value_head"))
        self._models = _models(policy, algorithm, critic, scoring, iterations_per_step)
        functions = Functions.of(
            algorithm, has_critic=self._models.critic is not None, max_response_length=max_response_length
        )
        self._make_experience = ExperienceMaker(
            algorithm,
            functions,
            self._models,
            max_response_length=max_response_length,
            communicator=self._communicator,
        )
        self._objective = Objective(algorithm, functions, critic, self._models, max_response_length=max_response_length)
        optimizer = partial(Optimizer, optim=optim, communicator=self._communicator)
        self._optimizers = {"actor": optimizer(policy, lr=optim.lr)}
        if self._models.critic is not None:
            self._optimizers["critic"] = optimizer(self._models.critic, lr=critic.lr or optim.lr)
        self._updates = 0
        self._step = 1
        self.kl_coeff = algorithm.kl_coeff
        """Weight of the divergence from the reference model. It may be changed between updates if it was not 0."""

    def start_step(self, step: int) -> None:
        """Make the current weights the proximal policy until the next call."""
        self._step = step
        self._models.proximal.start_step(step)

    def weights(self) -> Weights:
        """Return the weights for engines: parameters and buffers by name, with merged adapters. Not a copy."""
        return merged_state(self._module)

    def trainable(self) -> Weights:
        """Return the parameters of the policy that the optimizer changes. Not a copy."""
        return {name: tensor.detach() for name, tensor in self._module.named_parameters() if tensor.requires_grad}

    def logprobs(self, tokens: Tokens) -> Floats:
        """Return the log-probability of each token given those before it, (L,) -> (L - 1,), at sampling temperature."""
        return text_logprobs(self._module, tokens, self._models.scoring)

    def update(self, groups: Sequence[Group]) -> Mapping[str, object]:
        """Make `ppo_epochs` optimizer updates of one mini-batch in evaluation mode, and return its metrics.

        Raises `NonFiniteError` if a score, a loss or a gradient is NaN or infinite; neither this update nor later ones
        are made. With `skips_nonfinite` the update is counted in `actor/skipped_updates` instead. A mini-batch without
        a token to train on gives no update and is counted in `actor/updates_without_tokens`.
        """
        batch = PaddedBatch.of(
            groups,
            pad_id=self._pad_id,
            device=self._device,
            dtype=torch.float64 if self._dtype == torch.float64 else torch.float32,
            leaves_out_truncated=self._algorithm.overlong_filtering,
        )
        # In training mode, dropout would make the policy differ from the sampler and from itself.
        with in_eval_mode(*filter(None, (self._module, self._models.critic))):
            return {**batch_metrics(groups, self._communicator.merge), **self._train_on(batch)}

    def state_dict(self) -> dict[str, Any]:
        """Return the state of training between two steps. Not a copy."""
        numbers = {"updates": self._updates, "step": self._step, "kl_coeff": self.kl_coeff}
        configured = {"configured_kl_coeff": self._algorithm.kl_coeff}
        return {**numbers, **configured, **learner_state(self._models, self._optimizers)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state returned by `state_dict()`.

        Raises `CheckpointError`, and changes nothing, if it belongs to another model. A coefficient of the divergence
        that is configured differently now is not restored.
        """
        updates, step, kl_coeff = int(state["updates"]), int(state["step"]), float(state["kl_coeff"])
        before, now = float(state.get("configured_kl_coeff", self._algorithm.kl_coeff)), self._algorithm.kl_coeff
        restore(self._models, self._optimizers, state)
        self._updates, self.kl_coeff = updates, kl_coeff
        if before != now:
            _LOG.info(
                "algorithm.kl_coeff is %g and was %g when the checkpoint was saved: training resumes with %g, not %g",
                now,
                before,
                now,
                self.kl_coeff,
            )
            self.kl_coeff = now
        self.start_step(step)

    @property
    def _device(self) -> torch.device:
        return next(self._module.parameters()).device

    @property
    def _dtype(self) -> torch.dtype:
        return next(self._module.parameters()).dtype

    def _train_on(self, batch: PaddedBatch) -> Mapping[str, Metric]:
        """Make all optimizer updates of a mini-batch and return their metrics."""
        micro_batches = split(batch, size=self._optim.micro_batch_size, tokens=self._optim.micro_batch_tokens)
        try:
            experience = self._make_experience(batch, micro_batches, kl_coeff=self.kl_coeff)
        except NonFiniteError:  # a score
            if not self.skips_nonfinite:
                raise
            return self._state_metrics(skipped=self._algorithm.ppo_epochs)
        if experience is None:
            return self._state_metrics(without_tokens=self._algorithm.ppo_epochs)
        return reduce(_merge, [self._make_update(experience) for _ in range(self._algorithm.ppo_epochs)])

    def _make_update(self, experience: Experience) -> Mapping[str, Metric]:
        """Make one optimizer update and return its metrics."""
        statistics = self._accumulate_gradients(experience).reduced(self._communicator)
        norms = {f"{name}/grad_norm": optimizer.clip() for name, optimizer in self._optimizers.items()}
        statistics.add("norm", norms)
        values = statistics.to_host()
        rates = self._rates()
        skipped = not is_finite(values, rates, raises=not self.skips_nonfinite)
        if not skipped:
            for name, optimizer in self._optimizers.items():
                if rates[name]:
                    optimizer.step(rates[name])
            self._updates += 1
            self._models.proximal.updated()
        metrics = self._state_metrics(rates, skipped=int(skipped))
        if not skipped:
            metrics |= update_metrics(values, experience.totals, self._algorithm.loss_agg_mode)
        return metrics

    def _state_metrics(
        self, rates: Mapping[str, float] | None = None, *, skipped: int = 0, without_tokens: int = 0
    ) -> dict[str, Metric]:
        """Return the metrics that are reported whether or not an update is made."""
        rates = self._rates() if rates is None else rates
        metrics: dict[str, Metric] = {f"{name}/lr": Last(rate) for name, rate in rates.items()}
        if self._models.reference is not None:
            metrics["actor/kl_coef"] = Last(self.kl_coeff)
        if self.skips_nonfinite:
            metrics["actor/skipped_updates"] = Sum(skipped)
        if self._algorithm.overlong_filtering or without_tokens:
            metrics["actor/updates_without_tokens"] = Sum(without_tokens)
        return metrics

    def _accumulate_gradients(self, experience: Experience) -> UpdateStatistics:
        """Accumulate gradients over micro-batches and return their merged statistics."""
        for optimizer in self._optimizers.values():
            optimizer.zero_grad()
        statistics, reported = experience.statistics(), None
        for micro_batch in experience.micro_batches:
            loss, found = self._objective(experience, micro_batch, kl_coeff=self.kl_coeff)
            reported = found.keys() if reported is None else reported
            self._require_same(reported, found.keys())
            loss.backward()  # type: ignore[no-untyped-call]
            statistics.merge(found)
        return statistics

    def _require_same(self, reported: set[Key], found: set[Key]) -> None:
        """Raise `ConfigError` unless all micro-batches report the same statistics."""
        if different := sorted(name for _, name in reported ^ found):
            fault = (
                f"'{self._algorithm.policy_loss}' reported '{different[0]}' for some micro-batches only; report the "
                "same stats, with the same reductions, on every call"
            )
            raise ConfigError([Fault("algorithm.policy_loss", fault)])

    def _rates(self) -> dict[str, float]:
        """Return the learning rates of the next update; 0 for a policy during the warm-up of its critic."""
        unit = self._step if self._optim.lr_unit == "step" else self._updates + 1
        rates = {name: optimizer.lr(unit) for name, optimizer in self._optimizers.items()}
        warmup = self._critic.warmup_updates
        if self._updates < warmup:
            rates["actor"] = 0.0
        elif self._optim.lr_unit == "update":
            rates["actor"] = self._optimizers["actor"].lr(unit - warmup)
        return rates


def _models(
    policy: nn.Module, algorithm: AlgorithmOptions, critic: CriticOptions, scoring: Scoring, iterations_per_step: int
) -> Models:
    own = copy.deepcopy(policy) if critic.use == "model" else None
    return Models(
        policy=policy,
        proximal=ProximalPolicy(
            algorithm.proximal_policy,
            policy,
            iterations_per_step=iterations_per_step,
            ppo_epochs=algorithm.ppo_epochs,
        ),
        reference=frozen_copy(policy) if algorithm.kl_coeff else None,
        critic=None if critic.use == "none" else Critic(policy, own),
        scoring=scoring,
    )


def _merge(first: Mapping[str, Metric], second: Mapping[str, Metric]) -> Mapping[str, Metric]:
    """Merge the metrics of two optimizer updates of one mini-batch."""
    both = first.keys() & second.keys()
    return {**first, **second, **{key: first[key].merge(second[key]) for key in both}}
