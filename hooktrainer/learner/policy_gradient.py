"""The learner of the GRPO and PPO family: policy-gradient updates with AdamW, with or without a critic."""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, Final, cast

import torch
from torch import Tensor, nn

from hooktrainer.algorithms.options import AlgorithmOptions
from hooktrainer.errors import NonFiniteError
from hooktrainer.learner.adamw import AdamW
from hooktrainer.learner.batch import PaddedBatch
from hooktrainer.learner.batch_metrics import batch_metrics
from hooktrainer.learner.critic import Critic
from hooktrainer.learner.distributed import Ranks
from hooktrainer.learner.experience import Experience, Models, Preparation
from hooktrainer.learner.finite import is_finite
from hooktrainer.learner.forward import frozen_copy
from hooktrainer.learner.functions import Functions
from hooktrainer.learner.micro_batches import cuts
from hooktrainer.learner.objective import Objective
from hooktrainer.learner.options import CriticOptions, OptimOptions
from hooktrainer.learner.proximal import ProximalPolicy
from hooktrainer.learner.state import kept_state, restore
from hooktrainer.learner.update_metrics import update_metrics
from hooktrainer.metrics import Last, Metric, Sum
from hooktrainer.metrics.transfer import to_host
from hooktrainer.models.lora import merged_state
from hooktrainer.models.scoring import token_logprobs
from hooktrainer.ports import Floats, Group, Tokens

if TYPE_CHECKING:
    from hooktrainer.ports import Weights

_LOG: Final = logging.getLogger("hooktrainer")


class PolicyGradientLearner:
    """Trains one module on groups of scored answers, and a critic beside it if there is one.

    `iterations_per_step` is P; `max_response_length` is what the sampler allows, which overlong shaping and the
    aggregation by a constant length need. Raises `ConfigError` if an algorithm asks for something that is not there.
    """

    skips_nonfinite: bool = False
    """Whether an update whose loss or gradient is not finite is passed over and counted, instead of raised."""

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
        ranks: Ranks | None = None,
    ) -> None:
        critic, self._ranks = critic or CriticOptions(), ranks or Ranks()
        self._module = policy.train()
        self._pad_id = pad_id
        self._algorithm, self._optim, self._critic = algorithm, optim, critic
        self._models = _models(policy, algorithm, critic, temperature, iterations_per_step)
        functions = Functions.of(
            algorithm, has_critic=self._models.critic is not None, max_response_length=max_response_length
        )
        self._prepare = Preparation(
            algorithm, functions, self._models, max_response_length=max_response_length, ranks=self._ranks
        )
        self._objective = Objective(algorithm, functions, critic, self._models, max_response_length=max_response_length)
        self._optimizers = {"actor": AdamW(policy, optim, optim.lr, self._ranks)}
        if self._models.critic is not None:
            self._optimizers["critic"] = AdamW(self._models.critic, optim, critic.lr or optim.lr, self._ranks)
        self._updates = 0
        self._step = 1
        self.kl_coeff = algorithm.kl_coeff
        """Weight of the divergence from the reference model; it may be changed between updates if it was not 0."""

    def start_step(self, step: int) -> None:
        """The weights of now are the proximal policy until the next call."""
        self._step = step
        self._models.proximal.start_step(step)

    def weights(self) -> Weights:
        """What engines get: parameters and buffers by name, adapters merged into their base. Not a copy."""
        return merged_state(self._module)

    def trainable(self) -> Weights:
        """What the optimizer changes of the policy. Not a copy."""
        return {name: tensor.detach() for name, tensor in self._module.named_parameters() if tensor.requires_grad}

    def logprobs(self, tokens: Tokens) -> Floats:
        """Log-probability of each token given those before it, (L,) -> (L - 1,), at sampling temperature."""
        return token_logprobs(self._module, tokens, self._models.temperature)

    def update(self, groups: Sequence[Group]) -> Mapping[str, object]:
        """Make `ppo_epochs` optimizer updates of one mini-batch; returns metrics.

        Raises `NonFiniteError` if a score, a loss or a gradient is NaN or infinite: that update is not made, and those
        after it are not either; with `skips_nonfinite` it is counted as `actor/skipped_updates` instead. None is made
        of a mini-batch without a token to train on, counted as `actor/updates_without_tokens`.
        """
        batch = PaddedBatch.of(
            groups,
            pad_id=self._pad_id,
            device=self._device,
            dtype=torch.float64 if self._dtype == torch.float64 else torch.float32,
            leaves_out_truncated=self._algorithm.overlong_filtering,
        )
        parts = cuts(batch, size=self._optim.micro_batch_size, tokens=self._optim.micro_batch_tokens)
        try:
            made = self._prepare(batch, parts, kl_coeff=self.kl_coeff)
        except NonFiniteError:  # a score
            if not self.skips_nonfinite:
                raise
            return {**batch_metrics(groups), **self._state_metrics(skipped=self._algorithm.ppo_epochs)}
        if made is None:
            return {**batch_metrics(groups), **self._state_metrics(without_tokens=self._algorithm.ppo_epochs)}
        found = reduce(_merged, [self._make_update(made) for _ in range(self._algorithm.ppo_epochs)])
        return {**batch_metrics(groups), **found}

    def state_dict(self) -> dict[str, Any]:
        """All that training goes on from, taken between two steps. Nothing in it is a copy."""
        numbers = {"updates": self._updates, "step": self._step, "kl_coeff": self.kl_coeff}
        configured = {"configured_kl_coeff": self._algorithm.kl_coeff}
        return {**numbers, **configured, **kept_state(self._models, self._optimizers)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` gave. Raises `CheckpointError`, and changes nothing, if it is another model's.

        The coefficient of the divergence begins anew if another one is configured now than then.
        """
        updates, step, kl_coeff = int(state["updates"]), int(state["step"]), float(state["kl_coeff"])
        before, now = float(state.get("configured_kl_coeff", self._algorithm.kl_coeff)), self._algorithm.kl_coeff
        restore(self._models, self._optimizers, state)
        self._updates, self.kl_coeff = updates, kl_coeff
        if before != now:
            _LOG.info("algorithm.kl_coeff is %g now and was %g: it begins anew, from %g", now, before, self.kl_coeff)
            self.kl_coeff = now
        self.start_step(step)

    @property
    def _device(self) -> torch.device:
        return next(self._module.parameters()).device

    @property
    def _dtype(self) -> torch.dtype:
        return next(self._module.parameters()).dtype

    def _make_update(self, made: Experience) -> Mapping[str, Metric]:
        """One optimizer update."""
        sums = self._ranks.add_up(self._accumulate_gradients(made))
        norms = {f"{name}/grad_norm": optimizer.clip() for name, optimizer in self._optimizers.items()}
        values = cast("dict[str, float]", to_host(sums | norms | made.extremes()))
        rates = self._rates()
        skipped = not is_finite(values, rates, raises=not self.skips_nonfinite)
        if not skipped:
            for name, optimizer in self._optimizers.items():
                if rates[name]:
                    optimizer.step(rates[name])
            self._updates += 1
            self._models.proximal.updated()
        found = self._state_metrics(rates, skipped=int(skipped))
        if not skipped:
            found |= update_metrics(values, made.totals, self._algorithm.loss_agg_mode)
        return found

    def _state_metrics(
        self, rates: Mapping[str, float] | None = None, *, skipped: int = 0, without_tokens: int = 0
    ) -> dict[str, Metric]:
        """What can be said of updates whether they were made or not."""
        rates = self._rates() if rates is None else rates
        found: dict[str, Metric] = {f"{name}/lr": Last(rate) for name, rate in rates.items()}
        if self._models.reference is not None:
            found["actor/kl_coef"] = Last(self.kl_coeff)
        if self.skips_nonfinite:
            found["actor/skipped_updates"] = Sum(skipped)
        if self._algorithm.overlong_filtering or without_tokens:
            found["actor/updates_without_tokens"] = Sum(without_tokens)
        return found

    def _accumulate_gradients(self, made: Experience) -> dict[str, Tensor]:
        """Add up gradients over micro-batches; returns shares of losses, and sums over tokens."""
        for optimizer in self._optimizers.values():
            optimizer.zero_grad()
        sums = made.sums()
        for cut in made.cuts:
            loss, stats = self._objective(made, cut, kl_coeff=self.kl_coeff)
            loss.backward()  # type: ignore[no-untyped-call]
            for key, value in stats.items():
                sums[key] = sums[key] + value if key in sums else value
        return sums

    def _rates(self) -> dict[str, float]:
        """Learning rates of the next update; 0 for a policy that waits for its critic."""
        unit = self._step if self._optim.lr_unit == "step" else self._updates + 1
        rates = {name: optimizer.lr(unit) for name, optimizer in self._optimizers.items()}
        waits = self._critic.warmup_updates
        if self._updates < waits:
            rates["actor"] = 0.0
        elif self._optim.lr_unit == "update":
            rates["actor"] = self._optimizers["actor"].lr(unit - waits)
        return rates


def _models(
    policy: nn.Module, algorithm: AlgorithmOptions, critic: CriticOptions, temperature: float, iterations_per_step: int
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
        temperature=temperature,
    )


def _merged(first: Mapping[str, Metric], second: Mapping[str, Metric]) -> Mapping[str, Metric]:
    """Metrics of two optimizer updates of one mini-batch."""
    both = first.keys() & second.keys()
    return {**first, **second, **{key: first[key].merge(second[key]) for key in both}}
