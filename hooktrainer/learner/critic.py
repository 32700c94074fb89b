"""The critic: an estimate of the return in front of every token, and its loss. Shapes: B answers, T tokens."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hooktrainer.algorithms.masking import selected
from hooktrainer.algorithms.policy_losses import TokenLoss
from hooktrainer.learner.batch import PaddedBatch
from hooktrainer.learner.forward import states_of, trunk_of


def value_loss(
    values: Tensor, before: Tensor, returns: Tensor, mask: Tensor, *, cliprange: float | None = 0.5
) -> TokenLoss:
    """max((V - R)^2, (clip(V, V_before - c, V_before + c) - R)^2) / 2, all of shape (B, T).

    A value that has moved further than c from what it was before the update has no gradient, unless it is the worse of
    the two. Stat: `vf_clipfrac`, where the clipped side was taken. Source: PPO's code, as in verl.
    """
    values, before, returns = (selected(tensor, mask) for tensor in (values, before, returns))
    free = (values - returns).square()
    if cliprange is None:
        return TokenLoss(free / 2, {"vf_clipfrac": torch.zeros_like(free)})
    clipped = (before + (values - before).clamp(-cliprange, cliprange) - returns).square()
    return TokenLoss(torch.maximum(free, clipped) / 2, {"vf_clipfrac": (clipped > free).to(free.dtype)})


class Critic(nn.Module):
    """A linear map of hidden states that starts at 0: those of the policy, or of a model of its own."""

    def __init__(self, policy: nn.Module, own: nn.Module | None) -> None:
        super().__init__()
        trunk = trunk_of(policy if own is None else own)
        like = next(policy.parameters())
        self.own = own
        self.head = nn.Linear(trunk.width, 1, device=like.device, dtype=like.dtype)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, part: PaddedBatch, states: Tensor | None) -> Tensor:
        """Values in front of each response token, shape (B, T); `states` are those of the policy."""
        if self.own is not None:
            states = states_of(self.own, part)
        assert states is not None
        return self.head(states).squeeze(-1)  # type: ignore[no-any-return]
