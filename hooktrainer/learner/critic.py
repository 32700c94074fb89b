"""The critic, which estimates the return before each token, and its loss. Shapes: B answers, T tokens."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hooktrainer.algorithms.masking import selected
from hooktrainer.algorithms.policy_losses import TokenLoss
from hooktrainer.learner.batch import PaddedBatch
from hooktrainer.learner.forward import as_trunk, hidden_states


def value_loss(
    values: Tensor, before: Tensor, returns: Tensor, mask: Tensor, *, cliprange: float | None = 0.5
) -> TokenLoss:
    """Return max((V - R)^2, (clip(V, V_before - c, V_before + c) - R)^2) / 2; all shapes are (B, T).

    c is `cliprange`. A value that moved further than c from the value before the update has no gradient, unless its
    own error is the larger one. Stat: `vf_clipfrac`, the share of tokens whose clipped error was taken. Source: PPO's
    code, as in verl.
    """
    values, before, returns = (selected(tensor, mask) for tensor in (values, before, returns))
    free = (values - returns).square()
    if cliprange is None:
        return TokenLoss(free / 2, {"vf_clipfrac": torch.zeros_like(free)})
    clipped = (before + (values - before).clamp(-cliprange, cliprange) - returns).square()
    return TokenLoss(torch.maximum(free, clipped) / 2, {"vf_clipfrac": (clipped > free).to(free.dtype)})


class Critic(nn.Module):
    """A linear map of hidden states, initialised with zeros.

    The states are those of the policy, or of a separate model `own`.
    """

    def __init__(self, policy: nn.Module, own: nn.Module | None) -> None:
        super().__init__()
        trunk = as_trunk(policy if own is None else own)
        like = next(policy.parameters())
        self.own = own
        self.head = nn.Linear(trunk.width, 1, device=like.device, dtype=like.dtype)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, part: PaddedBatch, states: Tensor | None) -> Tensor:
        """Return the value before each response token, shape (B, T); `states` are the hidden states of the policy."""
        if self.own is not None:
            states = hidden_states(self.own, part)
        assert states is not None
        return self.head(states).squeeze(-1)  # type: ignore[no-any-return]
