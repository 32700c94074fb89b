"""The proximal policy of a step: the one that the clip is around.

| `algorithm.proximal_policy` | is | costs |
|---|---|---|
| `bypass` | the sampler, by the log-probabilities that it returned | nothing |
| `recompute` | the weights at the start of the step | a forward pass a mini-batch; a copy of the weights if P > 1 |
| `log_linear` | between sampler and current policy, by the age of the token in updates | nothing |

The first two are fixed over all updates of the step; an interpolation is made anew in each, of its current policy.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from hooktrainer.algorithms.proximal import log_linear
from hooktrainer.learner.batch import PaddedBatch
from hooktrainer.learner.forward import copy_weights, frozen_copy

Kind: TypeAlias = Literal["bypass", "recompute", "log_linear"]


class ProximalPolicy:
    """Knows the weights of the start of the step, or how far the current ones have come since."""

    def __init__(self, kind: Kind, module: nn.Module, *, iterations_per_step: int, ppo_epochs: int) -> None:
        self.recomputes = kind == "recompute"
        """Whether it has to be asked for its log-probabilities, with the weights of `module`."""
        self._interpolates = kind == "log_linear"
        self._live = module
        self._updates_per_step = iterations_per_step * ppo_epochs
        # The pass comes before the first epoch: with one iteration a step the weights are still those of its start.
        self._kept = frozen_copy(module) if self.recomputes and iterations_per_step > 1 else None
        self._step = 1
        self._updates = 0  # of this step

    @property
    def module(self) -> nn.Module:
        """The policy as it was at the start of the step."""
        return self._live if self._kept is None else self._kept

    def start_step(self, step: int) -> None:
        """Take the weights of now, whatever becomes of them until the next call."""
        self._step, self._updates = step, 0
        if self._kept is not None:
            copy_weights(self._live, self._kept)

    def updated(self) -> None:
        """One optimizer update was made."""
        self._updates += 1

    def of(self, part: PaddedBatch, recomputed: Tensor | None, logprobs: Tensor) -> Tensor:
        """Its log-probabilities of some answers, detached, given those of the current policy. Shape (b, t)."""
        if recomputed is not None:
            return recomputed
        if not self._interpolates:
            return part.behaviour
        start = (self._step - 1) * self._updates_per_step
        sampled = torch.where(part.versions < 0, -1, part.versions * self._updates_per_step)
        return log_linear(
            part.behaviour,
            logprobs.detach(),
            sampler_version=sampled,
            proximal_version=start,
            current_version=start + self._updates,
        )
