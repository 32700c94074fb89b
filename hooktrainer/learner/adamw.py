"""The optimizer with gradient clipping, a learning-rate schedule, and a state by parameter name."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from hooktrainer.learner.distributed import Communicator
from hooktrainer.learner.options import OptimOptions

_EPS: Final = 1e-8


class AdamW:
    """AdamW over the parameters of one module. It uses torch's function, whose class takes a second to import."""

    def __init__(self, module: nn.Module, optim: OptimOptions, lr: float, communicator: Communicator) -> None:
        self._parameters = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self._lr = lr
        self._optim = optim
        self._communicator = communicator
        self._moments: dict[str, dict[str, Tensor]] = {}

    @property
    def trains(self) -> Collection[str]:
        """Names of the parameters that are trained."""
        return self._parameters.keys()

    def zero_grad(self) -> None:
        """Reset the gradients."""
        for parameter in self._parameters.values():
            parameter.grad = None

    def clip(self) -> Tensor:
        """Sum the gradients over ranks, clip them to the largest allowed norm, and return the norm before clipping."""
        parameters = list(self._parameters.values())
        self._communicator.sum_gradients(parameters)
        return nn.utils.clip_grad_norm_(parameters, self._optim.grad_clip)

    def lr(self, unit: int) -> float:
        """Return the learning rate in a unit of the schedule, counted from 1."""
        return self._lr * self._optim.schedule.factor(unit)

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """Update the parameters that have a gradient."""
        moved = {name: p for name, p in self._parameters.items() if p.grad is not None}
        if not moved:
            return
        moments = [self._moments.setdefault(name, _initial_moments(p)) for name, p in moved.items()]
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
        """Return the moments of each parameter by its name. Not a copy."""
        return {name: dict(self._moments[name]) for name in self._parameters if name in self._moments}

    def load_state_dict(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        """Restore the state returned by `state_dict()`, which is copied."""
        self._moments = {
            name: {key: _restored(key, value, self._parameters[name]) for key, value in own.items()}
            for name, own in state.items()
        }


def _restored(key: str, value: object, parameter: nn.Parameter) -> Tensor:
    dtype = torch.float32 if key == "step" else parameter.dtype  # a checkpoint may be of narrower weights
    return torch.as_tensor(value).to(parameter.device, dtype, copy=True)


def _initial_moments(parameter: nn.Parameter) -> dict[str, Tensor]:
    return {
        "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
        "exp_avg": torch.zeros_like(parameter, memory_format=torch.preserve_format),
        "exp_avg_sq": torch.zeros_like(parameter, memory_format=torch.preserve_format),
    }
