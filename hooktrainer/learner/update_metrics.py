"""Metrics of one optimizer update, from its statistics, under the names of verl."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from hooktrainer.algorithms.aggregation import Totals
from hooktrainer.algorithms.divergence import Divergence
from hooktrainer.errors import NonFiniteError
from hooktrainer.learner.statistics import LOSSES, Key
from hooktrainer.metrics import Max, Mean, Metric, Min, Sum

DIVERGENCE: Final = "divergence/"
"""Prefix of the terms that make a `Divergence`."""
_REMEDIES: Final = (
    "Try a lower `optim.lr`, a longer `optim.lr_warmup` or a lower `optim.grad_clip`; if only the loss is not finite, "
    "check the scores and the sampler's log-probabilities."
)


def is_finite(values: Mapping[Key, float], rates: Mapping[str, float], *, raises: bool) -> bool:
    """Return whether losses and gradient norms are finite; with `raises`, raise `NonFiniteError` if they are not."""
    judged = {name: value for (kind, name), value in values.items() if kind in (*LOSSES, "norm")}
    wrong = [name for name, value in judged.items() if not math.isfinite(value)]
    if wrong and raises:
        shown = ", ".join(f"{name} {value:.6g}" for name, value in judged.items())
        lr = ", ".join(f"{name}/lr {rate:g}" for name, rate in rates.items())
        raise NonFiniteError(f"{wrong[0]} is {judged[wrong[0]]}: no update was made ({shown}, {lr}). {_REMEDIES}")
    return not wrong


def loss_weight(mode: str, totals: Totals) -> int:
    """Return the weight of an update's loss among other updates: the number of items that its mode averages over."""
    if mode == "token-mean":
        return totals.tokens
    return totals.prompts if mode == "prompt-mean" else totals.sequences


def update_metrics(values: Mapping[Key, float], totals: Totals, mode: str) -> dict[str, Metric]:
    """Return the metrics of an update whose losses were aggregated by `mode`, from the statistics of all ranks."""
    tokens = totals.tokens
    metrics: dict[str, Metric] = {}
    for (kind, name), value in values.items():
        if kind in ("max", "min"):
            metrics[name] = (Max if kind == "max" else Min)(value if tokens else None)
        elif kind == "norm":
            metrics[name] = Mean(value, 1)
        elif kind == "token_sum":
            metrics[name] = Sum(value)
        elif kind in LOSSES:
            weight = tokens if kind == "value_loss" else loss_weight(mode, totals)
            metrics[name] = Mean(value * weight, weight)
        elif kind != "term":
            metrics[name] = Mean(value, totals.sequences if kind == "answer_mean" else tokens)
    terms = {name: value for (kind, name), value in values.items() if kind == "term"}
    if "vf_error" in terms and tokens:
        metrics["critic/vf_explained_var"] = Mean(_explained(terms, tokens) * tokens, tokens)
    if f"{DIVERGENCE}weight" in terms and tokens:
        metrics |= _correction_metrics(terms, tokens)
    return metrics


def _correction_metrics(terms: Mapping[str, float], tokens: int) -> dict[str, Metric]:
    """Return the metrics of the ratio of proximal to behaviour policy."""
    sums = {key.removeprefix(DIVERGENCE): value for key, value in terms.items() if key.startswith(DIVERGENCE)}
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


def _explained(terms: Mapping[str, float], count: int) -> float:
    """Return 1 - var(returns - values) / var(returns); NaN if all returns are equal.

    1 is a perfect critic, 0 is as good as a constant. Returns that differ by less than 1e-5 of their size differ by
    rounding only.
    """
    spread = terms["returns_sq"] / count - (terms["returns"] / count) ** 2
    residual = terms["vf_error_sq"] / count - (terms["vf_error"] / count) ** 2
    return 1.0 - residual / spread if spread > 1e-10 * terms["returns_sq"] / count else math.nan
