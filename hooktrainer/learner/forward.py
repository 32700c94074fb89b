"""One pass of a policy over the answers of a batch. Shapes: B answers, T response tokens, V vocabulary."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from hooktrainer.algorithms.logprobs import log_policy, of_tokens
from hooktrainer.errors import ConfigError
from hooktrainer.learner.batch import PaddedBatch
from hooktrainer.learner.micro_batches import Cut
from hooktrainer.models.policy import Policy, Trunk, full_state


def logits_of(module: nn.Module, batch: PaddedBatch) -> Tensor:
    """Logits in front of each response token, shape (B, T, V)."""
    model = cast("Policy", module)
    return model(batch.tokens[:, :-1], batch.left_pad, logits_to_keep=batch.responses.shape[1])


def states_of(module: nn.Module, batch: PaddedBatch) -> Tensor:
    """Hidden states in front of each response token, shape (B, T, width)."""
    return trunk_of(module).hidden(batch.tokens[:, :-1], batch.left_pad, states_to_keep=batch.responses.shape[1])


def logprobs_of(module: nn.Module, batch: PaddedBatch, temperature: float) -> Tensor:
    """Log-probabilities of the response tokens at this temperature, shape (B, T)."""
    return of_tokens(log_policy(logits_of(module, batch), temperature), batch.responses)


def trunk_of(module: nn.Module) -> Trunk:
    """The module as what a critic reads. Raises `ConfigError` if it gives no hidden states."""
    if isinstance(module, Trunk):
        return module
    raise ConfigError(
        f"critic: a critic reads hidden states, and the model {type(module).__name__} gives none: it needs `width`, "
        "`hidden` and `project` (hooktrainer.models.policy.Trunk). Give it these, or take an `algorithm.adv_estimator` "
        "without a critic"
    )


@torch.no_grad()
def over_all(cuts: Sequence[Cut], like: Tensor, values_of: Callable[[PaddedBatch], Tensor]) -> Tensor:
    """What a pass gives for each token of all parts, NaN where none has one. Shape (B, T), that of `like`."""
    values = torch.full_like(like, torch.nan)
    for cut in cuts:
        cut.put(values, values_of(cut.part).to(values.dtype))
    return values


def frozen_copy(module: nn.Module) -> nn.Module:
    """A copy that nothing trains and nothing drops out of."""
    return copy.deepcopy(module).requires_grad_(requires_grad=False).eval()


@torch.no_grad()
def copy_weights(come_from: nn.Module, to: nn.Module) -> None:
    """Overwrite parameters and buffers of one module with those of another of its kind."""
    target = full_state(to)
    for name, tensor in full_state(come_from).items():
        target[name].copy_(tensor)
