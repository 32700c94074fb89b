"""The optimizer, compared with `torch.optim.AdamW`."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hooktrainer.learner.adamw import AdamW
from hooktrainer.learner.distributed import Communicator
from hooktrainer.learner.options import OptimOptions


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_adamw_equals_torch_adamw_bit_for_bit(dtype: torch.dtype) -> None:
    ours, theirs = (nn.Linear(5, 3, dtype=dtype), nn.Linear(5, 3, dtype=dtype))
    theirs.load_state_dict(ours.state_dict())
    optim = OptimOptions(lr=0.01, weight_decay=0.1, beta1=0.8, beta2=0.95)
    mine = AdamW(ours, optim, optim.lr, Communicator())
    other = torch.optim.AdamW(theirs.parameters(), lr=0.01, betas=(0.8, 0.95), weight_decay=0.1, fused=True)

    for step in range(1, 8):
        for module, optimizer in ((ours, mine), (theirs, other)):
            optimizer.zero_grad()
            inputs = torch.full((2, 5), 0.1 * step, dtype=dtype)
            weight_alone = (inputs @ module.weight.T).square().sum()  # the bias gets a gradient later, and not always
            (module(inputs).sin().sum() if step % 3 == 2 else weight_alone).backward()
        other.param_groups[0]["lr"] = 0.01 / step
        mine.step(0.01 / step)
        other.step()

    assert torch.equal(ours.weight, theirs.weight)
    assert torch.equal(ours.bias, theirs.bias)
    kept = {name: {key: float(value.sum()) for key, value in own.items()} for name, own in mine.state_dict().items()}
    names = {"weight": theirs.weight, "bias": theirs.bias}
    assert kept == {name: {k: float(v.sum()) for k, v in other.state[p].items()} for name, p in names.items()}


def test_adamw_without_gradients_changes_no_parameter() -> None:
    module = nn.Linear(2, 2)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    optim = OptimOptions(weight_decay=0.5)

    AdamW(module, optim, optim.lr, Communicator()).step(0.1)

    assert all(torch.equal(before[name], tensor) for name, tensor in module.state_dict().items())
