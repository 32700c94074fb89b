"""Criteria of rejection and checks of their bounds. Imports no torch, so that a configuration can be validated."""

from __future__ import annotations

import math
from typing import Any, Final

from hooktrainer.errors import did_you_mean

CRITERIA: Final = (
    *(f"{scope}_k{kind}" for scope in ("token", "seq_sum", "seq_mean") for kind in (1, 2, 3)),
    "seq_max_k2",
    "seq_max_k3",
)
"""Each is a scope and an estimate of the divergence of a token."""


def criterion_fault(key: str, bound: Any) -> str:
    """Return why a criterion or its bound is refused; empty if it is allowed."""
    if key not in CRITERIA:
        return f"unknown criterion '{key}'; expected one of {', '.join(CRITERIA)}.{did_you_mean(key, CRITERIA)}"
    if not key.endswith("k1"):
        limit = _is_number(bound) and 0 <= bound < math.inf
        return "" if limit else f"expected an upper limit, a number of at least 0, found {_plain(bound)}"
    pair = isinstance(bound, (tuple, list)) and len(bound) == 2 and all(map(_is_number, bound))
    right = pair and 0 <= bound[0] <= bound[1]
    return "" if right else f"expected the bounds [low, high] of the ratio, 0 <= low <= high, found {_plain(bound)}"


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _plain(bound: Any) -> str:
    return str(list(bound)) if isinstance(bound, tuple) else str(bound)
