"""One optimizer with its gradient clipping, its schedule, and a state that names parameters."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from hooktrainer.learner.options import Optim
from hooktrainer.learner.ranks import Ranks


class AdamW:
    """AdamW over the parameters of one module."""

    def __init__(self, module: nn.Module, optim: Optim, lr: float, ranks: Ranks) -> None:
        self._parameters = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self._lr = lr
        self._optim = optim
        self._ranks = ranks
        self._adamw = torch.optim.AdamW(
            self._parameters.values(),
            lr=lr,
            betas=(optim.beta1, optim.beta2),
            weight_decay=optim.weight_decay,
            fused=True,
        )

    @property
    def trains(self) -> Collection[str]:
        """Names of the parameters that it moves."""
        return self._parameters.keys()

    def zero_grad(self) -> None:
        """Forget the gradients."""
        self._adamw.zero_grad(set_to_none=True)

    def clip(self) -> Tensor:
        """Add gradients up over ranks and scale them to the allowed norm; returns the norm that they had."""
        parameters = list(self._parameters.values())
        self._ranks.add_up_gradients(parameters)
        return nn.utils.clip_grad_norm_(parameters, self._optim.grad_clip)

    def lr(self, unit: int) -> float:
        """The learning rate in a unit of the schedule, counted from 1."""
        return self._lr * self._optim.schedule.factor(unit)

    def step(self, lr: float) -> None:
        """Move the parameters."""
        for group in self._adamw.param_groups:
            group["lr"] = lr
        self._adamw.step()

    def state_dict(self) -> dict[str, Any]:
        """What it remembers of each parameter, by its name. Not a copy."""
        return {name: dict(self._adamw.state[p]) for name, p in self._parameters.items() if p in self._adamw.state}

    def load_state_dict(self, kept: Mapping[str, Mapping[str, Any]]) -> None:
        """Take back what `state_dict` gave; it is copied."""
        self._adamw.state.clear()
        for name, values in kept.items():
            parameter = self._parameters[name]
            self._adamw.state[parameter] = {
                key: torch.as_tensor(value).to(parameter.device, copy=True) for key, value in values.items()
            }
