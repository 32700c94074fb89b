"""Estimates of the divergence of the current policy from the reference, one a token."""

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
    """KL(current || reference) in nats: k1 = -d, k2 = d² / 2, k3 = exp(d) - d - 1 with d = reference - logprobs.

    Shapes (B, T), (B, T), bool (B, T) -> (B, T), 0 where the mask is False. d is clamped to ±20, with no gradient
    beyond; k3 is not cut at 10 as it is in verl. As a loss of the current policy's own samples, prefixes held fixed, k1
    has the mean gradient 0, k2 that of KL(current || reference), k3 that of KL(reference || current).

    With `behaviour` (B, T), the log-probabilities of the policy that sampled, each estimate is multiplied by
    exp(logprobs - behaviour), with gradient for k1 and k3 and without for k2: the mean gradient of each is then that of
    KL(current || reference). Raises `ConfigError` for another estimator. Source: Schulman, Approximating KL Divergence
    (2020).
    """
    if estimator not in ESTIMATORS:
        there = ", ".join(ESTIMATORS)
        raise ConfigError(f"unknown estimator '{estimator}'; there are {there}.{did_you_mean(estimator, ESTIMATORS)}")
    value = _estimate(estimator, log_ratio_of(reference, logprobs, mask).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO))
    if behaviour is not None:
        ratio = ratio_of(log_ratio_of(logprobs, behaviour, mask))
        value = value * (ratio.detach() if estimator == "k2" else ratio)
    return selected(value, mask)


def _estimate(estimator: str, d: Tensor) -> Tensor:
    if estimator == "k1":
        return -d
    return d**2 / 2 if estimator == "k2" else torch.expm1(d) - d
