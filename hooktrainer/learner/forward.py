"""Forward passes of a policy over the answers of a batch. Shapes: B answers, T response tokens, V vocabulary."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from hooktrainer.errors import ConfigError
from hooktrainer.learner.batch import PaddedBatch
from hooktrainer.learner.micro_batches import MicroBatch
from hooktrainer.models.policy import Trunk, as_forward, full_state
from hooktrainer.models.scoring import Entropy, Scoring, TokenScores, token_logprobs


def response_scores(module: nn.Module, batch: PaddedBatch, scoring: Scoring, entropy: Entropy = "none") -> TokenScores:
    """Return the log-probabilities of the response tokens, shape (B, T), and their entropies."""
    return token_logprobs(module, batch.tokens[:, :-1], batch.left_pad, batch.responses, scoring, entropy=entropy)


def hidden_states(module: nn.Module, batch: PaddedBatch) -> Tensor:
    """Return the hidden states from which each response token is predicted, shape (B, T, width)."""
    kept = batch.responses.shape[1]
    return as_forward(module, as_trunk(module).hidden, batch.tokens[:, :-1], batch.left_pad, states_to_keep=kept)


def as_trunk(module: nn.Module) -> Trunk:
    """Return the module as a `Trunk`. Raises `ConfigError` if it does not return hidden states."""
    if isinstance(module, Trunk):
        return module
    raise ConfigError(
        f"critic: a critic reads hidden states, and the model {type(module).__name__} gives none: it needs `width`, "
        "`hidden` and `project` (hooktrainer.models.policy.Trunk). Add these, or choose an `algorithm.adv_estimator` "
        "without a critic"
    )


@torch.no_grad()
def gather(parts: Sequence[MicroBatch], like: Tensor, compute: Callable[[PaddedBatch], Tensor]) -> Tensor:
    """Compute values for each token of all micro-batches, NaN elsewhere. Shape (B, T), that of `like`."""
    values = torch.full_like(like, torch.nan)
    for micro_batch in parts:
        micro_batch.write(compute(micro_batch.part).to(values.dtype), into=values)
    return values


def frozen_copy(module: nn.Module) -> nn.Module:
    """Return a copy in evaluation mode whose parameters require no gradient."""
    return copy.deepcopy(module).requires_grad_(requires_grad=False).eval()


@torch.no_grad()
def copy_weights(source: nn.Module, target: nn.Module) -> None:
    """Copy parameters and buffers of one module into another of the same architecture."""
    tensors = full_state(target)
    for name, tensor in full_state(source).items():
        tensors[name].copy_(tensor)
