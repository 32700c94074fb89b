"""Names of algorithms, known without importing torch."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from hooktrainer.errors import ConfigError, did_you_mean

ADVANTAGE_ESTIMATORS: Final[Mapping[str, str]] = MappingProxyType({"grpo": "hooktrainer.algorithms.advantages:grpo"})
"""(scores (B,), groups (B,)) -> advantages (B,)."""

POLICY_LOSSES: Final[Mapping[str, str]] = MappingProxyType(
    {"ppo_clip": "hooktrainer.algorithms.policy_losses:ppo_clip"}
)
"""(logprobs, proximal, advantages, mask, *, clip_ratio_low, clip_ratio_high) -> TokenLoss."""

LOSS_AGG_MODES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "token-mean": "hooktrainer.algorithms.aggregation:token_mean",
        "seq-mean-token-mean": "hooktrainer.algorithms.aggregation:seq_mean_token_mean",
        "seq-mean-token-sum": "hooktrainer.algorithms.aggregation:seq_mean_token_sum",
    }
)
"""(values (B, T), mask (B, T), totals) -> scalar."""


def check(name: str, known: Mapping[str, str]) -> None:
    """Raise `ConfigError` unless `name` is known or has the form `package.module:function`; imports nothing."""
    module, _, function = name.partition(":")
    if name in known or (function.isidentifier() and all(part.isidentifier() for part in module.split("."))):
        return
    raise ConfigError(
        f"'{name}' is unknown; it takes {', '.join(known)} or package.module:function.{did_you_mean(name, known)}"
    )


def resolve(name: str, known: Mapping[str, str]) -> Callable[..., Any]:
    """The function behind a name. Raises `ConfigError` if there is none."""
    check(name, known)
    module, _, function = known.get(name, name).partition(":")
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"'{name}' cannot be imported: {error}") from error
    if not callable(found):
        raise ConfigError(f"'{name}' is a {type(found).__name__}, not a function")
    return found  # type: ignore[no-any-return]
