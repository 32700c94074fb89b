"""Statistics that a policy loss reports, each with its reduction over the tokens of a mini-batch.

`TokenLoss.stats` maps a name to one of these, or to a plain tensor, which is a `TokenMean`. Values have the shape
(B, T), or one that broadcasts to it, for B answers and T tokens. They are detached, and read only where the mask is
True. The reduction runs over all tokens of the mini-batch: micro-batches and ranks do not change it. The name has no
influence on it.

A name without a slash is reported as `actor/<name>`, one with a slash as it is. Names of metrics that the trainer
reports itself are refused. A loss must report the same names on every call.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs
from torch import Tensor

RESERVED_METRICS: Final = frozenset(
    f"actor/{name}"
    for name in (
        "entropy", "grad_norm", "kl", "kl_coef", "kl_loss", "log_ratio_abs", "loss_spikes", "lr", "pg_loss",
        "reward_kl_penalty", "rollbacks", "skipped_updates", "updates_without_tokens",
    )
)  # fmt: skip
"""Metrics of the actor that the learner and plugins report themselves."""
RESERVED_PREFIXES: Final = frozenset(
    {
        "critic", "global_seqlen", "ledger", "nan", "perf", "prompt_length", "replay", "response_length", "rollout",
        "rollout_corr", "timing_per_token_ms", "timing_s", "training", "val", "weight_sync",
    }
)  # fmt: skip
"""First parts of the names of other metrics that the trainer reports itself."""


@attrs.frozen(eq=False)
class TokenStat:
    """Base of all statistics over tokens."""

    values: Tensor
    """Shape (B, T), or one that broadcasts to it."""


class TokenMean(TokenStat):
    """Mean over the tokens with a mask."""


class TokenSum(TokenStat):
    """Sum over the tokens with a mask."""


class TokenMax(TokenStat):
    """Maximum over the tokens with a mask."""


class TokenMin(TokenStat):
    """Minimum over the tokens with a mask."""


def as_stat(value: Tensor | TokenStat) -> TokenStat:
    """Return a stat as it is, and a plain tensor as a `TokenMean`."""
    return value if isinstance(value, TokenStat) else TokenMean(value)


def metric_name(key: str) -> str:
    """Return the metric that a stat of this name is reported as."""
    return key if "/" in key else f"actor/{key}"


def name_fault(key: object, stats: Mapping[str, object]) -> str:
    """Return why the name of a stat is refused; empty if it is allowed."""
    if not isinstance(key, str) or not all(key.split("/")):
        return "this names no metric; expected a name such as 'ratio' or 'ratio/max'"
    name = metric_name(key)
    derived = name.endswith("/minmax_diff")  # computed from the extremes of the row
    if derived or name in RESERVED_METRICS or name.partition("/")[0] in RESERVED_PREFIXES:
        return f"the metric '{name}' is one that the trainer reports itself; choose another name"
    other = name.removeprefix("actor/")
    if key == name != other and other in stats and metric_name(other) == name:
        return f"another key has the metric '{name}'; drop one of them"
    return ""
