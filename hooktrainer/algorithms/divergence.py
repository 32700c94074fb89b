"""Divergence between two policies, as sums over tokens that add up over micro-batches and ranks."""

from __future__ import annotations

import math

import attrs
import torch
from torch import Tensor

from hooktrainer.algorithms.masking import MAX_LOG_RATIO, ratio_of, selected


def divergence_sums(log_ratio: Tensor, mask: Tensor, weights: Tensor | None = None) -> dict[str, Tensor]:
    """Return the fields of `Divergence`, as scalars on the device. Shapes (B, T), (B, T), (B, T) -> ().

    `log_ratio` is log ρ = logπ - logμ for samples of μ. `weights` are the applied weights, ρ if left out.
    """
    log_ratio = selected(log_ratio.detach(), mask)
    ratio = selected(ratio_of(log_ratio), mask)
    applied = ratio if weights is None else selected(weights.detach(), mask)
    clamped = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return {
        "tokens": mask.sum(),
        "weight": applied.sum(),
        "squared_weight": (applied**2).sum(),
        "squared_ratio": (ratio**2).sum(),
        "log_ratio": log_ratio.sum(),
        "absolute": log_ratio.abs().sum(),
        "excess": (torch.expm1(clamped) - clamped).sum(),
        "clamped": (log_ratio.abs() > MAX_LOG_RATIO).sum(),
    }


@attrs.frozen
class Divergence:
    """Sums over tokens with a mask, and estimates computed from them. Without a token, means are NaN."""

    tokens: float = 0
    weight: float = 0
    """Sum of the applied weights."""
    squared_weight: float = 0
    squared_ratio: float = 0
    """Sum of ρ², exponents clamped to ±20."""
    log_ratio: float = 0
    """Sum of log ρ, not clamped."""
    absolute: float = 0
    """Sum of |log ρ|, not clamped."""
    excess: float = 0
    """Sum of ρ - log ρ - 1, exponents clamped to ±20."""
    clamped: float = 0
    """Number of tokens whose exponent was clamped."""

    @property
    def effective_sample_size(self) -> float:
        """Return (Σw)² / (N Σw²) over N tokens, between 1/N and 1; 0 if all weights are 0. Source: Kish (1965)."""
        return self.weight**2 / (self.tokens * self.squared_weight) if self.squared_weight else 0.0

    @property
    def chi2(self) -> float:
        """Return mean(ρ²) - 1, an estimate of χ²(π || μ)."""
        return self._mean(self.squared_ratio) - 1.0

    @property
    def k1(self) -> float:
        """Return mean(logμ - logπ), an estimate of KL(μ || π) that can be negative."""
        return self._mean(-self.log_ratio)

    @property
    def k3(self) -> float:
        """Return mean(ρ - log ρ - 1), an estimate of KL(μ || π) that is at least 0."""
        return self._mean(self.excess)

    @property
    def mean_absolute(self) -> float:
        """Return the mean of |log ρ|, which is exactly 0 if the policies are equal."""
        return self._mean(self.absolute)

    def _mean(self, total: float) -> float:
        return total / self.tokens if self.tokens else math.nan
