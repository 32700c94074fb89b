"""Checks of the results of functions named in YAML, which users may write.

Shapes: B answers, T tokens, as in the inputs of the call. A shape that broadcasts is accepted where it gives the same
result as the full shape.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from torch import Tensor

from hooktrainer.algorithms.policy_losses import TokenLoss
from hooktrainer.algorithms.stats import as_stat, name_fault
from hooktrainer.errors import ConfigError, Fault


def check(key: str, name: str, found: object, available: Mapping[str, Any]) -> None:
    """Raise `ConfigError` if a function returned a wrong type or shape.

    `key` is the key of the `algorithm` section that has its `name`; `available` are the inputs of the call.
    """
    if wrong := _RULES[key](found, available):
        raise ConfigError([Fault(f"algorithm.{key}", f"'{name}' returned {wrong}")])


def _policy_loss(found: object, available: Mapping[str, Any]) -> str:
    shape = tuple(available["mask"].shape)
    if not isinstance(found, TokenLoss):
        return (
            f"{_shown(found)}, expected a TokenLoss: return TokenLoss(loss, stats) of {TokenLoss.__module__}, with "
            f"loss of shape {shape}, one value per token, and stats {{}} or the statistics to report"
        )
    if not _has_shape(found.loss, shape):
        return (
            f"a TokenLoss whose loss is {_shown(found.loss)}, expected a tensor of shape {shape}, one value per token; "
            "loss_agg_mode aggregates them"
        )
    stats: object = found.stats
    if not isinstance(stats, Mapping):
        return f"a TokenLoss whose stats are {_shown(stats)}, expected a dict of tensors"
    for key, stat in stats.items():
        if wrong := name_fault(key, stats):
            return f"a TokenLoss with stats[{key!r}], but {wrong}"
        value = as_stat(stat).values
        if not _fits(value, shape):
            return f"a TokenLoss whose stats[{key!r}] is {_shown(value)}, expected a tensor of shape {shape}"
    return ""


def _advantages(found: object, available: Mapping[str, Any]) -> str:
    answers, tokens = tuple(available["rewards"].shape), tuple(available["mask"].shape)
    pair = found if isinstance(found, tuple) else (found, None)
    if len(pair) != 2 or not (_has_shape(pair[0], answers) or _has_shape(pair[0], tokens)):
        return (
            f"{_shown(found)}, expected a tensor of shape {answers}, one value per answer, or {tokens}, one per "
            "token; for a critic the pair of advantages and returns"
        )
    returns = pair[1]
    if returns is not None and not _has_shape(returns, tokens):
        return f"returns that are {_shown(returns)}, expected a tensor of shape {tokens}, one value per token"
    return ""


def _number(found: object, _available: Mapping[str, Any]) -> str:
    if isinstance(found, Tensor) and found.numel() == 1:
        return ""
    return f"{_shown(found)}, expected a tensor of one number"


def _weights(found: object, available: Mapping[str, Any]) -> str:
    shape = tuple(available["mask"].shape)
    return "" if _fits(found, shape) else f"{_shown(found)}, expected a tensor of shape {shape}, one weight per token"


_RULES: Final[Mapping[str, Callable[[object, Mapping[str, Any]], str]]] = MappingProxyType(
    {
        "adv_estimator": _advantages,
        "policy_loss": _policy_loss,
        "loss_agg_mode": _number,
        "behaviour_weight": _weights,
    }
)
"""Checks by key of the `algorithm` section; each returns a description of the fault, empty if there is none."""


def _has_shape(value: object, shape: tuple[int, ...]) -> bool:
    return isinstance(value, Tensor) and value.shape == shape


def _fits(value: object, shape: tuple[int, ...]) -> bool:
    """Return whether the value is a tensor of this shape, or one that broadcasts to it."""
    if not isinstance(value, Tensor) or value.dim() > len(shape):
        return False
    return all(size in (1, full) for size, full in zip(reversed(value.shape), reversed(shape), strict=False))


def _shown(found: object) -> str:
    if isinstance(found, Tensor):
        return f"a tensor of shape {tuple(found.shape)}"
    if isinstance(found, tuple):
        return f"a tuple of {len(found)} ({', '.join(map(_shown, found))})"
    return "None" if found is None else f"a value of type {type(found).__name__}"
