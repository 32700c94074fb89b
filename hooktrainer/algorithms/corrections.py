"""Weights of tokens that correct for the difference between the sampler and the proximal policy.

Shapes: B answers, T tokens. `log_ratio` (B, T) is log ρ = proximal - behaviour log-probability, `mask` (B, T) bool.
Weights are (B, T), detached, and 0 where the mask is False. Exponents are clamped to ±20, after the sum over the answer
for products and means. Bounds are inclusive and apply to ρ. All functions raise `ConfigError` unless 0 <= low <= high.

A token with weight 0, and its answer, still count in every denominator.
"""

from __future__ import annotations

from torch import Tensor

from hooktrainer.algorithms.masking import lengths_of, ratio_of, selected
from hooktrainer.errors import ConfigError


def tis_token(log_ratio: Tensor, mask: Tensor, *, low: float = 0.0, high: float = 2.0) -> Tensor:
    """Return truncated importance weights: ρ of the token, at most `high` (and at least `low`, as in slime).

    Source: IMPALA (1802.01561) §4.1; slime; verl.
    """
    _check(low, high)
    return selected(_token_ratio(log_ratio, mask).clamp(low, high), mask)


def tis_sequence(log_ratio: Tensor, mask: Tensor, *, low: float = 0.0, high: float = 2.0) -> Tensor:
    """Return truncated importance weights of answers: the product of ρ, at most `high`. Source: verl."""
    _check(low, high)
    return selected(_product_ratio(log_ratio, mask).clamp(low, high), mask)


def icepop(log_ratio: Tensor, mask: Tensor, *, low: float = 0.5, high: float = 5.0) -> Tensor:
    """Return ρ of the token inside the bounds, 0 outside. Source: IcePop (2510.18855), with the bounds of AReaL."""
    return _ratio_inside(_token_ratio(log_ratio, mask), mask, low, high)


def mis_token(log_ratio: Tensor, mask: Tensor, *, low: float = 0.0, high: float = 2.0) -> Tensor:
    """Return masked importance weights: ρ of the token up to `high`, 0 above. Source: verl, after Liu et al. (2025)."""
    return _ratio_inside(_token_ratio(log_ratio, mask), mask, low, high)


def mis_sequence(log_ratio: Tensor, mask: Tensor, *, low: float = 0.0, high: float = 2.0) -> Tensor:
    """Return the product of ρ over the answer up to `high`, 0 above. Source: verl, after Liu et al. (2025)."""
    return _ratio_inside(_product_ratio(log_ratio, mask), mask, low, high)


def mask_geometric(log_ratio: Tensor, mask: Tensor, *, low: float = 0.99, high: float = 1.01) -> Tensor:
    """Return 1 for answers whose geometric mean of ρ is inside the bounds, else 0. Source: verl."""
    return _one_inside(_mean_ratio(log_ratio, mask), mask, low, high)


def mask_product(log_ratio: Tensor, mask: Tensor, *, low: float = 0.5, high: float = 2.0) -> Tensor:
    """Return 1 for answers whose product of ρ is inside the bounds, else 0. Source: verl."""
    return _one_inside(_product_ratio(log_ratio, mask), mask, low, high)


def _token_ratio(log_ratio: Tensor, mask: Tensor) -> Tensor:
    return ratio_of(selected(log_ratio.detach(), mask))


def _product_ratio(log_ratio: Tensor, mask: Tensor) -> Tensor:
    return ratio_of(selected(log_ratio.detach(), mask).sum(dim=1, keepdim=True))


def _mean_ratio(log_ratio: Tensor, mask: Tensor) -> Tensor:
    return ratio_of(selected(log_ratio.detach(), mask).sum(dim=1, keepdim=True) / lengths_of(mask))


def _ratio_inside(ratio: Tensor, mask: Tensor, low: float, high: float) -> Tensor:
    _check(low, high)
    return selected(ratio, mask & (ratio >= low) & (ratio <= high))


def _one_inside(ratio: Tensor, mask: Tensor, low: float, high: float) -> Tensor:
    _check(low, high)
    return (mask & (ratio >= low) & (ratio <= high)).to(ratio.dtype)


def _check(low: float, high: float) -> None:
    if not 0 <= low <= high:
        raise ConfigError(f"expected bounds on the ratio with 0 <= low <= high, found low {low} and high {high}")
