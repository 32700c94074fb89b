"""The learner of the GRPO and PPO family: one clipped policy-gradient update with AdamW."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

import torch
from torch import Tensor, nn

from hooktrainer.algorithms import registry
from hooktrainer.algorithms.aggregation import Totals
from hooktrainer.algorithms.logprobs import entropy, log_policy, of_tokens
from hooktrainer.algorithms.options import Algorithm
from hooktrainer.errors import NonFiniteError
from hooktrainer.groups import Floats, Group, Tokens
from hooktrainer.host import to_host
from hooktrainer.learner.batch import PaddedBatch
from hooktrainer.learner.batch_metrics import batch_metrics
from hooktrainer.learner.options import Optim
from hooktrainer.learner.restore import restore_optimizer, restore_weights
from hooktrainer.metrics import Last, Max, Mean, Min, Sum
from hooktrainer.models.lora import merged_state
from hooktrainer.models.policy import Policy, full_state
from hooktrainer.models.scoring import token_logprobs

if TYPE_CHECKING:
    from hooktrainer.ports import Weights

_REMEDIES: Final = (
    "Try a lower `optim.lr`, a longer `optim.lr_warmup_updates` or a lower `optim.grad_clip`; if the loss alone is not "
    "finite, look at the scores and the sampler's log-probabilities."
)


class PolicyGradientLearner:
    """Trains one module on groups of scored answers.

    The proximal policy is the sampler itself: the ratio of a token is current / behaviour, from the log-probabilities
    that the sampler returned, whatever the staleness of the group.
    """

    def __init__(
        self,
        policy: nn.Module,
        *,
        algorithm: Algorithm,
        optim: Optim,
        temperature: float = 1.0,
        pad_id: int = 0,
    ) -> None:
        self.skips_nonfinite = False
        self._module = policy.train()
        self._temperature = temperature
        self._pad_id = pad_id
        self._optim = optim
        self._parameters = [parameter for parameter in policy.parameters() if parameter.requires_grad]
        self._optimizer = torch.optim.AdamW(
            self._parameters,
            lr=optim.lr,
            betas=(optim.beta1, optim.beta2),
            weight_decay=optim.weight_decay,
            fused=True,
        )
        self._updates = 0
        self._entropy_coeff = algorithm.entropy_coeff
        self._advantages = registry.resolve(algorithm.adv_estimator, registry.ADVANTAGE_ESTIMATORS)
        self._token_loss = partial(
            registry.resolve(algorithm.policy_loss, registry.POLICY_LOSSES),
            clip_ratio_low=algorithm.clip_ratio_low,
            clip_ratio_high=algorithm.clip_ratio_high,
        )
        self._aggregate = registry.resolve(algorithm.loss_agg_mode, registry.LOSS_AGG_MODES)
        self._is_token_mean = algorithm.loss_agg_mode == "token-mean"

    def weights(self) -> Weights:
        """What engines get: parameters and buffers by name, adapters merged into their base. Not a copy."""
        return merged_state(self._module)

    def trainable(self) -> Weights:
        """What the optimizer changes. Not a copy."""
        return {name: tensor.detach() for name, tensor in self._module.named_parameters() if tensor.requires_grad}

    def logprobs(self, tokens: Tokens) -> Floats:
        """Log-probability of each token given those before it, (L,) -> (L - 1,), at sampling temperature."""
        return token_logprobs(self._module, tokens, self._temperature)

    def state_dict(self) -> Mapping[str, object]:
        """Weights, optimizer and the place in the schedule of the learning rate. Not a copy."""
        optimizer = self._optimizer.state_dict()["state"]
        return {"weights": dict(full_state(self._module)), "optimizer": optimizer, "updates": self._updates}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` gave. Raises `CheckpointError`, and changes nothing, if it is another model's."""
        restore_weights(full_state(self._module), state["weights"])
        restore_optimizer(self._optimizer, state["optimizer"])
        self._updates = state["updates"]

    def update(self, groups: Sequence[Group]) -> Mapping[str, object]:
        """Make one optimizer update; returns metrics.

        If the loss or the gradient is NaN or infinite, weights, optimizer and schedule stay as they were, and
        `NonFiniteError` is raised, or with `skips_nonfinite` counted.
        """
        batch = PaddedBatch.of(groups, pad_id=self._pad_id, device=self._parameters[0].device)
        lengths = [len(trajectory.tokens) for group in groups for trajectory in group.trajectories]
        totals = Totals(tokens=sum(lengths), sequences=sum(length > 0 for length in lengths))
        advantages = self._advantages(batch.scores, batch.groups)

        self._optimizer.zero_grad(set_to_none=True)
        sums = self._accumulate_gradients(batch, advantages, totals)
        sums["grad_norm"] = nn.utils.clip_grad_norm_(self._parameters, self._optim.grad_clip)
        spread = {"advantages": advantages.sum(), "highest": advantages.max(), "lowest": advantages.min()}
        values = cast("dict[str, float]", to_host(sums | spread))
        lr = self._set_lr()
        skipped = {"actor/skipped_updates": Sum(0)} if self.skips_nonfinite else {}
        if self.skips_nonfinite and not _is_finite(values):
            return {**batch_metrics(groups), "actor/skipped_updates": Sum(1)}
        _check_finite(values, lr)
        self._optimizer.step()
        self._updates += 1
        loss_weight = totals.tokens if self._is_token_mean else totals.sequences
        return {
            **batch_metrics(groups),
            **skipped,
            "actor/pg_loss": Mean(values.pop("pg_loss") * loss_weight, loss_weight),
            "actor/grad_norm": Mean(values.pop("grad_norm"), 1),
            "actor/lr": Last(lr),
            "critic/advantages/mean": Mean(values.pop("advantages"), len(lengths)),
            "critic/advantages/max": Max(values.pop("highest")),
            "critic/advantages/min": Min(values.pop("lowest")),
            **{f"actor/{key}": Mean(total, totals.tokens) for key, total in values.items()},
        }

    def _accumulate_gradients(self, batch: PaddedBatch, advantages: Tensor, totals: Totals) -> dict[str, Tensor]:
        """Add up gradients over micro-batches; returns the loss, and the sums over tokens of what is to be reported."""
        sums: dict[str, Tensor] = {}
        rows = self._optim.micro_batch_size or len(batch.tokens)
        for part, part_advantages in zip(batch.split(rows), torch.split(advantages, rows), strict=True):
            loss, stats = self._loss(part, part_advantages, totals)
            loss.backward()  # type: ignore[no-untyped-call]
            for key, value in stats.items():
                sums[key] = sums[key] + value if key in sums else value
        return sums

    def _loss(self, batch: PaddedBatch, advantages: Tensor, totals: Totals) -> tuple[Tensor, dict[str, Tensor]]:
        model = cast("Policy", self._module)
        logits = model(batch.tokens[:, :-1], batch.left_pad, logits_to_keep=batch.responses.shape[1])
        policy = log_policy(logits, self._temperature)
        result = self._token_loss(of_tokens(policy, batch.responses), batch.behaviour, advantages[:, None], batch.mask)
        pg_loss = self._aggregate(result.loss, batch.mask, totals)
        loss = pg_loss
        if self._entropy_coeff:
            entropies = entropy(policy)
            loss = pg_loss - self._entropy_coeff * self._aggregate(entropies, batch.mask, totals)
        else:
            entropies = entropy(policy.detach())
        stats = {**result.stats, "entropy": entropies.detach()}
        sums = {key: torch.where(batch.mask, value, 0.0).sum() for key, value in stats.items()}
        return loss, {"pg_loss": pg_loss.detach(), **sums}

    def _set_lr(self) -> float:
        lr = self._optim.lr_of(self._updates + 1)
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        return lr


def _is_finite(values: Mapping[str, float]) -> bool:
    return math.isfinite(values["pg_loss"]) and math.isfinite(values["grad_norm"])


def _check_finite(values: Mapping[str, float], lr: float) -> None:
    for key in ("pg_loss", "grad_norm"):
        if not math.isfinite(values[key]):
            raise NonFiniteError(
                f"actor/{key} is {values[key]}: no update was made (actor/pg_loss {values['pg_loss']}, "
                f"actor/grad_norm {values['grad_norm']}, actor/lr {lr:g}). {_REMEDIES}"
            )
