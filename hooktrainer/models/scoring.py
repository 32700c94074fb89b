"""Log-probabilities of a text, computed without changing the module."""

from __future__ import annotations

from typing import cast

import torch
from torch import nn

from hooktrainer.algorithms.logprobs import log_policy, of_tokens
from hooktrainer.models.policy import Policy, in_eval_mode
from hooktrainer.ports import Floats, Tokens


@torch.no_grad()
def token_logprobs(module: nn.Module, tokens: Tokens, temperature: float) -> Floats:
    """Return the log-probability of each token given the tokens before it, (L,) -> (L - 1,), without dropout."""
    text = torch.from_numpy(tokens).to(next(module.parameters()).device)
    with in_eval_mode(module):
        logits = cast("Policy", module)(text[None, :-1])
    scores: Floats = of_tokens(log_policy(logits[0], temperature), text[1:]).float().cpu().numpy()
    return scores
