"""An approximation of the proximal policy that needs no forward pass."""

from __future__ import annotations

import torch
from torch import Tensor

from hooktrainer.errors import ConfigError


def log_linear(
    behaviour: Tensor, logprobs: Tensor, *, sampler_version: Tensor, proximal_version: int, current_version: int
) -> Tensor:
    """Interpolate between sampler and current policy by version: behaviour + α (logprobs - behaviour), detached.

    α = (proximal - sampler) / (current - sampler) per token, clamped to [0, 1]. It is 0 where the sampler has the
    current version, and where its version is negative, as for prompt tokens. Shapes: `behaviour`, `logprobs` and
    `sampler_version` (B, T) -> (B, T).

    Versions count optimizer updates. With P updates per step, iteration j of step k has the proximal version (k - 1) P
    and the current version (k - 1) P + j. A token sampled at the published version v has the version P v.
    Raises `ConfigError` if the proximal version is above the current one. Source: after AReaL's prox_approx.
    """
    if proximal_version > current_version:
        raise ConfigError(f"the proximal version {proximal_version} is above the current one, {current_version}")
    span = current_version - sampler_version
    known = (span != 0) & (sampler_version >= 0)
    share = (proximal_version - sampler_version).to(behaviour.dtype) / torch.where(known, span, 1)
    alpha = torch.where(known, share.clamp(0.0, 1.0), 0.0)
    logprobs = logprobs.detach()
    moved = torch.where(alpha == 0, behaviour, behaviour + alpha * (logprobs - behaviour))
    return torch.where(alpha == 1, logprobs, moved)
