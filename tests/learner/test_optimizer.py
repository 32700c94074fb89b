"""The optimizer: `torch.optim.AdamW` with its own state, by parameter name."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from hooktrainer.learner.distributed import Communicator
from hooktrainer.learner.optimizer import Optimizer
from hooktrainer.learner.options import OptimOptions

OPTIM = OptimOptions(lr=0.01, weight_decay=0.1, beta1=0.8, beta2=0.95)


def passes(module: nn.Linear, step: int) -> None:
    """Compute gradients; the bias gets its first one later, and not in every step."""
    module.zero_grad()
    inputs = torch.full((2, 5), 0.1 * step, dtype=module.weight.dtype)
    weight_alone = (inputs @ module.weight.T).square().sum()
    (module(inputs).sin().sum() if step % 3 == 2 else weight_alone).backward()


def by_hand(p: Tensor, gradients: list[Tensor | None], rates: list[float]) -> Tensor:
    """AdamW of 1711.05101 with bias correction."""
    p, first, second, count = p.clone(), torch.zeros_like(p), torch.zeros_like(p), 0
    for gradient, lr in zip(gradients, rates, strict=True):
        if gradient is None:
            continue
        count += 1
        first = 0.8 * first + 0.2 * gradient
        second = 0.95 * second + 0.05 * gradient.square()
        p = p - lr * 0.1 * p
        p = p - lr * (first / (1 - 0.8**count)) / ((second / (1 - 0.95**count)).sqrt() + 1e-8)
    return p


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_steps_follow_the_formula_of_adamw(dtype: torch.dtype) -> None:
    module = nn.Linear(5, 3, dtype=dtype)
    started = {name: p.detach().clone() for name, p in module.named_parameters()}
    made = Optimizer(module, OPTIM, OPTIM.lr, Communicator())
    gradients: dict[str, list[Tensor | None]] = {name: [] for name in started}
    rates = [0.01 / step for step in range(1, 8)]
    for step, rate in enumerate(rates, start=1):
        passes(module, step)
        for name, p in module.named_parameters():
            gradients[name].append(None if p.grad is None else p.grad.clone())
        made.step(rate)
    tolerance = {"rtol": 1e-12, "atol": 1e-12} if dtype == torch.float64 else {"rtol": 1e-5, "atol": 1e-6}
    for name, p in module.named_parameters():
        torch.testing.assert_close(p.detach(), by_hand(started[name], gradients[name], rates), **tolerance)


def test_state_is_that_of_torch_by_parameter_name() -> None:
    module, other = nn.Linear(5, 3), nn.Linear(5, 3)
    other.load_state_dict(module.state_dict())
    made = Optimizer(module, OPTIM, OPTIM.lr, Communicator())
    theirs = torch.optim.AdamW(other.parameters(), lr=0.01, betas=(0.8, 0.95), weight_decay=0.1, fused=True)
    for step in range(1, 5):
        passes(module, step)
        passes(other, step)
        made.step(0.01)
        theirs.step()
    names = ["weight", "bias"]
    expected = {names[number]: own for number, own in theirs.state_dict()["state"].items()}
    torch.testing.assert_close(made.state_dict(), expected, rtol=0, atol=0)
    assert torch.equal(module.weight, other.weight)


def test_options_of_a_restored_optimizer_are_those_that_are_configured_now() -> None:
    before, now = nn.Linear(5, 3), nn.Linear(5, 3)
    first = Optimizer(before, OPTIM, OPTIM.lr, Communicator())
    passes(before, 2)
    first.step(0.01)
    second = Optimizer(now, OptimOptions(weight_decay=0.5, beta1=0.0), 0.1, Communicator())
    second.load_state_dict(first.state_dict())
    now.load_state_dict(before.state_dict())
    now.weight.grad, now.bias.grad = torch.zeros(3, 5), torch.zeros(3)
    second.step(0.1)
    torch.testing.assert_close(now.weight, 0.95 * before.weight)
    assert second.state_dict()["bias"]["step"] == 2


def test_a_step_without_gradients_changes_no_parameter() -> None:
    module = nn.Linear(2, 2)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    Optimizer(module, OptimOptions(weight_decay=0.5), 0.1, Communicator()).step(0.1)
    assert all(torch.equal(before[name], tensor) for name, tensor in module.state_dict().items())
