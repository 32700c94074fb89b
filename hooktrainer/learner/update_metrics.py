"""From the sums of one optimizer update to metrics, under the names of verl."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from hooktrainer.algorithms.aggregation import Totals
from hooktrainer.algorithms.divergence import Divergence
from hooktrainer.metrics import Max, Mean, Metric, Min

DIVERGENCE: Final = "divergence/"
"""Prefix of the sums that make a `Divergence`."""

_NAMES: Final[Mapping[str, str]] = {
    "vf_loss": "critic/vf_loss",
    "vf_clipfrac": "critic/vf_clipfrac",
    "values": "critic/values/mean",
    "returns": "critic/returns/mean",
}
"""Of sums that are not called `actor/<sum>`."""

_MOMENTS: Final = ("returns_sq", "vf_error", "vf_error_sq")


def name_of(key: str) -> str:
    """The metric that one of the sums becomes."""
    return _NAMES.get(key, key if "/" in key else f"actor/{key}")


def loss_weight(mode: str, totals: Totals) -> int:
    """What the loss of one update weighs beside that of another: as much as what its mode averages over."""
    if mode == "token-mean":
        return totals.tokens
    return totals.prompts if mode == "prompt-mean" else totals.sequences


def update_metrics(values: Mapping[str, float], totals: Totals, mode: str) -> dict[str, Metric]:
    """Metrics of extremes, norms, shares of losses (`..._loss`) and sums over tokens, told apart by their keys."""
    tokens = totals.tokens
    found: dict[str, Metric] = {}
    for key, value in values.items():
        name = name_of(key)
        if key.endswith("/max"):
            found[name] = Max(value)
        elif key.endswith("/min"):
            found[name] = Min(value)
        elif key.endswith("/grad_norm"):
            found[name] = Mean(value, 1)
        elif key.endswith("_loss"):
            weight = tokens if key == "vf_loss" else loss_weight(mode, totals)
            found[name] = Mean(value * weight, weight)
        elif not key.startswith(DIVERGENCE) and key not in _MOMENTS:
            found[name] = Mean(value, totals.sequences if key == "critic/rewards/mean" else tokens)
    if "vf_error" in values and tokens:
        found["critic/vf_explained_var"] = Mean(_explained(values, tokens) * tokens, tokens)
    if f"{DIVERGENCE}weight" in values and tokens:
        found |= _correction_metrics(values, tokens)
    return found


def _correction_metrics(values: Mapping[str, float], tokens: int) -> dict[str, Metric]:
    """Of the ratio of proximal to behaviour policy."""
    sums = {key.removeprefix(DIVERGENCE): value for key, value in values.items() if key.startswith(DIVERGENCE)}
    divergence = Divergence(tokens=tokens, **sums)
    means = {
        "rollout_is_mean": divergence.weight / tokens,
        "rollout_is_eff_sample_size": divergence.effective_sample_size,
        "chi2_token": divergence.chi2,
        "kl": divergence.k1,
        "k3_kl": divergence.k3,
        "log_ratio_abs": divergence.mean_absolute,
        "clamped_fraction": divergence.clamped / tokens,
    }
    return {f"rollout_corr/{key}": Mean(value * tokens, tokens) for key, value in means.items()}


def _explained(sums: Mapping[str, float], count: int) -> float:
    """1 - var(returns - values) / var(returns): 1 is perfect, 0 as good as a constant; NaN if all returns are alike.

    Returns that differ by less than 1e-5 of their size do so by rounding.
    """
    spread = sums["returns_sq"] / count - (sums["returns"] / count) ** 2
    left = sums["vf_error_sq"] / count - (sums["vf_error"] / count) ** 2
    return 1.0 - left / spread if spread > 1e-10 * sums["returns_sq"] / count else math.nan
