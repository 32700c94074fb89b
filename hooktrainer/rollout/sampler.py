"""Batched autoregressive sampling with a key-value cache.

Shapes: G prompts, n answers to each, B = G·n answers, T response tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import attrs
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hooktrainer.algorithms.logprobs import log_policy, of_tokens
from hooktrainer.errors import RolloutError
from hooktrainer.groups import Floats, Tokens

if TYPE_CHECKING:
    from hooktrainer.models.policy import Policy


@attrs.frozen(eq=False)
class Responses:
    """What was sampled; an answer ends at its length, whatever stands behind."""

    tokens: Tokens
    """Shape (B, T)."""
    logprobs: Floats
    """At sampling temperature. Shape (B, T)."""
    lengths: Tokens
    """Tokens of each answer, the end token included. Shape (B,)."""
    ended: NDArray[np.bool_]
    """Whether the end token was reached. Shape (B,)."""


def uniforms(seed: int, number: int, n: int, length: int) -> NDArray[np.float64]:
    """The random numbers of one group, one each answer and token. Shape (n, length).

    They depend on nothing but run seed and dispatch number: a group's answers do not change with the groups beside it.
    """
    return np.random.default_rng((seed, number)).random((n, length))


@torch.no_grad()
def sample(
    model: Policy,
    prompts: Sequence[Tokens],
    uniforms: NDArray[np.float64] | None,
    *,
    n: int,
    temperature: float,
    max_response_length: int,
    eos_id: int,
    device: torch.device,
) -> Responses:
    """Answer each prompt `n` times, each answer until its end token; greedily if there are no `uniforms` (B, T).

    A prompt is read once and its cache copied for its answers. Raises `RolloutError` if logits are not finite.
    """
    tokens, left_pad = pad_left(prompts, device)
    longest = tokens.shape[1] + max_response_length
    cache = model.new_cache(len(prompts), longest)
    logits = model(tokens, left_pad, cache=cache, logits_to_keep=1)[:, -1].repeat_interleave(n, dim=0)
    cache = cache.repeat(n)
    left_pad = None if left_pad is None else left_pad.repeat_interleave(n)
    draws = None if uniforms is None else torch.from_numpy(uniforms).to(device)

    ended = torch.zeros(len(logits), dtype=torch.bool, device=device)
    chosen: list[Tensor] = []
    logprobs: list[Tensor] = []
    for place in range(max_response_length):
        policy = log_policy(logits, temperature)
        chosen.append(policy.argmax(dim=-1) if draws is None else inverse_cdf(policy, draws[:, place]))
        logprobs.append(of_tokens(policy, chosen[-1]))
        ended |= chosen[-1] == eos_id
        if place + 1 == max_response_length or bool(ended.all()):
            break
        logits = model(chosen[-1][:, None], left_pad, cache=cache, logits_to_keep=1)[:, -1]
    return _responses(torch.stack(chosen, dim=1), torch.stack(logprobs, dim=1), eos_id)


def inverse_cdf(log_policy: Tensor, draws: Tensor) -> Tensor:
    """The token in whose part of the cumulated distribution each draw from [0, 1) lies. (B, V), (B,) -> (B,).

    In float64, so that draw and token agree on every device; a token of probability 0 is never chosen.
    """
    cumulated = log_policy.double().exp().cumsum(dim=-1)
    thresholds = draws[:, None] * cumulated[:, -1:]
    tokens = torch.searchsorted(cumulated, thresholds, right=True).squeeze(-1)
    return tokens.clamp(max=log_policy.shape[-1] - 1)  # only NaNs lie beyond, which are reported at the end


def pad_left(prompts: Sequence[Tokens], device: torch.device) -> tuple[Tensor, Tensor | None]:
    """Prompts aligned at their ends, (G, Q), and how much padding each has, (G,); None if none has any."""
    width = max(len(prompt) for prompt in prompts)
    padded = np.zeros((len(prompts), width), dtype=np.int64)
    for row, prompt in zip(padded, prompts, strict=True):
        row[width - len(prompt) :] = prompt
    left_pad = np.array([width - len(prompt) for prompt in prompts])
    tokens = torch.from_numpy(padded).to(device)
    return tokens, torch.from_numpy(left_pad).to(device) if left_pad.any() else None


def _responses(tokens: Tensor, logprobs: Tensor, eos_id: int) -> Responses:
    tokens_np, logprobs_np = tokens.cpu().numpy(), logprobs.float().cpu().numpy()
    is_end = tokens_np == eos_id
    ended = is_end.any(axis=1)
    lengths = np.where(ended, is_end.argmax(axis=1) + 1, tokens_np.shape[1])
    if not np.isfinite(logprobs_np).all():
        raise RolloutError("the model gives logits that are not finite, so that nothing can be sampled from it")
    return Responses(tokens_np, logprobs_np, lengths, ended)
