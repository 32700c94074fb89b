"""One optimizer with its gradient clipping, its schedule, and a state that names parameters."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from hooktrainer.learner.distributed import Ranks
from hooktrainer.learner.options import OptimOptions

_EPS: Final = 1e-8


class AdamW:
    """AdamW over the parameters of one module, by torch's function: the class around it takes a second to import."""

    def __init__(self, module: nn.Module, optim: OptimOptions, lr: float, ranks: Ranks) -> None:
        self._parameters = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self._lr = lr
        self._optim = optim
        self._ranks = ranks
        self._moments: dict[str, dict[str, Tensor]] = {}

    @property
    def trains(self) -> Collection[str]:
        """Names of the parameters that it moves."""
        return self._parameters.keys()

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for parameter in self._parameters.values():
            parameter.grad = None

    def clip(self) -> Tensor:
        """Add gradients up over ranks and scale them to the allowed norm; returns the norm that they had."""
        parameters = list(self._parameters.values())
        self._ranks.add_up_gradients(parameters)
        return nn.utils.clip_grad_norm_(parameters, self._optim.grad_clip)

    def lr(self, unit: int) -> float:
        """The learning rate in a unit of the schedule, counted from 1."""
        return self._lr * self._optim.schedule.factor(unit)

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """Move the parameters that have a gradient."""
        moved = {name: p for name, p in self._parameters.items() if p.grad is not None}
        if not moved:
            return
        moments = [self._moments.setdefault(name, _at_rest(p)) for name, p in moved.items()]
        adamw(
            list[Tensor](moved.values()),
            [p.grad for p in moved.values() if p.grad is not None],
            [own["exp_avg"] for own in moments],
            [own["exp_avg_sq"] for own in moments],
            [],
            [own["step"] for own in moments],
            fused=True,
            amsgrad=False,
            beta1=self._optim.beta1,
            beta2=self._optim.beta2,
            lr=lr,
            weight_decay=self._optim.weight_decay,
            eps=_EPS,
            maximize=False,
        )

    def state_dict(self) -> dict[str, Any]:
        """What it remembers of each parameter, by its name. Not a copy."""
        return {name: dict(self._moments[name]) for name in self._parameters if name in self._moments}

    def load_state_dict(self, kept: Mapping[str, Mapping[str, Any]]) -> None:
        """Take back what `state_dict` gave; it is copied."""
        self._moments = {
            name: {
                key: torch.as_tensor(value).to(self._parameters[name].device, copy=True) for key, value in own.items()
            }
            for name, own in kept.items()
        }


def _at_rest(parameter: nn.Parameter) -> dict[str, Tensor]:
    return {
        "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
        "exp_avg": torch.zeros_like(parameter, memory_format=torch.preserve_format),
        "exp_avg_sq": torch.zeros_like(parameter, memory_format=torch.preserve_format),
    }
