"""The proximal policy of a step, around which the policy loss clips.

| `algorithm.proximal_policy` | log-probabilities | cost |
|---|---|---|
| `bypass` | those that the sampler returned | none |
| `recompute` | of the weights at the start of the step | a forward pass per mini-batch, a copy of weights if P > 1 |
| `log_linear` | interpolated between sampler and current policy by the age of the token in updates | none |

The first two are fixed for all updates of a step. The interpolation is computed in each update.
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
    """Holds the weights of the start of the step, or counts the updates since then."""

    def __init__(self, kind: Kind, module: nn.Module, *, iterations_per_step: int, ppo_epochs: int) -> None:
        self.recomputes = kind == "recompute"
        """Whether its log-probabilities are computed by a forward pass of `module`."""
        self._interpolates = kind == "log_linear"
        self._live = module
        self._updates_per_step = iterations_per_step * ppo_epochs
        # The pass precedes the first update: with one iteration per step the live weights are those of its start.
        self._copy = frozen_copy(module) if self.recomputes and iterations_per_step > 1 else None
        self._step = 1
        self._updates = 0  # of this step

    @property
    def module(self) -> nn.Module:
        """The policy with the weights of the start of the step."""
        return self._live if self._copy is None else self._copy

    def start_step(self, step: int) -> None:
        """Make the current weights the proximal policy until the next call."""
        self._step, self._updates = step, 0
        if self._copy is not None:
            copy_weights(self._live, self._copy)

    def updated(self) -> None:
        """Count one optimizer update."""
        self._updates += 1

    def logprobs(self, part: PaddedBatch, recomputed: Tensor | None, current: Tensor) -> Tensor:
        """Return the log-probabilities of the proximal policy, detached; `current` are those of the current policy.

        All shapes are (b, t). `recomputed` are those of a forward pass, if there was one.
        """
        if recomputed is not None:
            return recomputed
        if not self._interpolates:
            return part.behaviour
        start = (self._step - 1) * self._updates_per_step
        sampled = torch.where(part.versions < 0, -1, part.versions * self._updates_per_step)
        return log_linear(
            part.behaviour,
            current.detach(),
            sampler_version=sampled,
            proximal_version=start,
            current_version=start + self._updates,
        )
