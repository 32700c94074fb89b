"""Log-probabilities of tokens, without the logits of all positions in memory.

Logits have the shape (B, T, V): at V = 50,000 those of 2,048 tokens take 400 MB, and their log-softmax and its gradient
as much again. A model with `hidden` and `project` computes them in chunks of positions, and again in the backward pass.
Shapes: B texts, L tokens of a text, T of them scored, V vocabulary.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, TypeAlias, cast

import attrs
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from hooktrainer.algorithms.logprobs import entropy as entropy_of
from hooktrainer.algorithms.logprobs import log_policy, of_tokens
from hooktrainer.models.policy import Policy, Trunk, as_forward, in_eval_mode
from hooktrainer.ports import Floats, Tokens

Entropy: TypeAlias = Literal["none", "detached", "differentiable"]
_POSITIONS: Final = 128
"""Positions of the smallest chunk. Matrix products over fewer rows are slow."""
_LOGITS: Final = 4_000_000
"""Logits of a chunk of more positions, 16 MB in float32."""


def chunk_size(vocab_size: int) -> int:
    """Return the number of positions whose logits are in memory at once."""
    return max(_POSITIONS, _LOGITS // vocab_size)


@attrs.frozen
class Scoring:
    """How log-probabilities of a policy are computed."""

    temperature: float = 1.0
    """Sampling temperature, by which logits are divided."""
    chunk: int | None = None
    """Positions whose logits are in memory at once. They are computed by `hidden` and `project` of a `Trunk`. None for
    all positions, and for a policy without these methods."""


class TokenScores(NamedTuple):
    """Results of a forward pass for the last T positions."""

    logprobs: Tensor
    """Log-probabilities of the targets at the sampling temperature, shape (B, T); at least float32."""
    entropies: Tensor | None
    """Entropies of the policy, shape (B, T), if requested."""
    states: Tensor | None
    """Hidden states that the targets are predicted from, shape (B, T, width), if the pass is made in chunks."""


def token_logprobs(
    module: nn.Module,
    tokens: Tensor,
    left_pad: Tensor | None,
    targets: Tensor,
    scoring: Scoring,
    *,
    entropy: Entropy = "none",
) -> TokenScores:
    """Score the targets (B, T), which the last T of the tokens (B, L) predict. Hooks on the module run."""
    model, kept, chunk = cast("Policy", module), targets.shape[1], scoring.chunk
    if chunk is None:
        policy = log_policy(model(tokens, left_pad, logits_to_keep=kept), scoring.temperature)
        return TokenScores(*_scores(policy, targets, entropy), states=None)
    trunk = cast("Trunk", module)

    def score(states: Tensor, targets: Tensor) -> tuple[Tensor, Tensor | None]:
        return _scores(log_policy(trunk.project(states), scoring.temperature), targets, entropy)

    def forward(tokens: Tensor, left_pad: Tensor | None) -> TokenScores:
        states = trunk.hidden(tokens, left_pad, states_to_keep=kept)
        if targets.numel() <= chunk:
            return TokenScores(*score(states, targets), states=states)
        parts = zip(torch.split(states.flatten(0, 1), chunk), torch.split(targets.flatten(), chunk), strict=True)
        if torch.is_grad_enabled():
            found = [checkpoint(score, *part, use_reentrant=False, preserve_rng_state=False) for part in parts]
        else:
            found = [score(*part) for part in parts]
        logprobs, entropies = zip(*found, strict=True)
        joined = None if entropy == "none" else torch.cat(entropies).view_as(targets)
        return TokenScores(torch.cat(logprobs).view_as(targets), joined, states)

    return as_forward(module, forward, tokens, left_pad)


def _scores(policy: Tensor, targets: Tensor, entropy: Entropy) -> tuple[Tensor, Tensor | None]:
    """Return log-probabilities and entropies of a policy. Shapes (..., V), (...) -> (...), (...)."""
    logprobs = of_tokens(policy, targets)
    if entropy == "none":
        return logprobs, None
    # Entropy is computed last: a checkpoint does not compute again what follows the last tensor with a gradient.
    return logprobs, entropy_of(policy if entropy == "differentiable" else policy.detach())


@torch.no_grad()
def text_logprobs(module: nn.Module, tokens: Tokens, scoring: Scoring) -> Floats:
    """Return the log-probability of each token given the tokens before it, (L,) -> (L - 1,), without dropout.

    The module is not changed.
    """
    text = torch.from_numpy(tokens).to(next(module.parameters()).device)[None]
    with in_eval_mode(module):
        scores = token_logprobs(module, text[:, :-1], None, text[:, 1:], scoring)
    found: Floats = scores.logprobs[0].float().cpu().numpy()
    return found
