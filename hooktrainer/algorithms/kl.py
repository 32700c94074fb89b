"""Estimates of the divergence of the current policy from the reference, one per token."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from hooktrainer.algorithms.masking import MAX_LOG_RATIO, log_ratio_of, ratio_of, selected
from hooktrainer.errors import ConfigError, did_you_mean

ESTIMATORS: Final = ("k1", "k2", "k3")


def kl(
    logprobs: Tensor, reference: Tensor, mask: Tensor, *, estimator: str = "k3", behaviour: Tensor | None = None
) -> Tensor:
    """Estimate KL(current || reference): k1 = -d, k2 = d² / 2, k3 = exp(d) - d - 1, d = reference - logprobs.

    Shapes (B, T), (B, T), bool (B, T) -> (B, T), 0 where the mask is False. The difference d is clamped to ±20, with
    no gradient beyond. Unlike in verl, k3 is not clamped at 10. As a loss on samples of the current policy, for fixed
    prefixes, k1 has the mean gradient 0, k2 that of KL(current || reference), and k3 that of
    KL(reference || current).

    With `behaviour` (B, T), the log-probabilities of the sampler, each estimate is multiplied by
    exp(logprobs - behaviour), with gradient for k1 and k3 and without for k2. Each then has the mean gradient of
    KL(current || reference). Raises `ConfigError` for an unknown estimator. Source: Schulman,
    Approximating KL Divergence (2020).
    """
    if estimator not in ESTIMATORS:
        known = ", ".join(ESTIMATORS)
        raise ConfigError(
            f"unknown estimator '{estimator}'; expected one of {known}.{did_you_mean(estimator, ESTIMATORS)}"
        )
    value = _estimate(estimator, log_ratio_of(reference, logprobs, mask).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO))
    if behaviour is not None:
        ratio = ratio_of(log_ratio_of(logprobs, behaviour, mask))
        value = value * (ratio.detach() if estimator == "k2" else ratio)
    return selected(value, mask)


def _estimate(estimator: str, d: Tensor) -> Tensor:
    if estimator == "k1":
        return -d
    return d**2 / 2 if estimator == "k2" else torch.expm1(d) - d
