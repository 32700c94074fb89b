"""Options of one reward function of a task."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs

from hooktrainer._util.registry import NAMES_A, Kind

REWARDS: Final[Kind[Callable[..., Any]]] = Kind("reward function", thing="function")


def _resolves(_instance: object, _field: object, value: str) -> None:
    REWARDS.resolve(value)


def _is_finite(_instance: object, _field: object, value: float) -> None:
    if not math.isfinite(value):
        raise ValueError(f"expected a finite number, found {value}")


def _is_name(_instance: object, _field: object, value: str) -> None:
    if not re.fullmatch(r"[\w.-]*", value):
        raise ValueError(f"the name of a metric consists of letters, digits, '_', '-' and '.'; found {value!r}")


@attrs.frozen(kw_only=True)
class RewardOptions:
    """A reward function, its weight in the score, and its name in metrics."""

    use: str = attrs.field(validator=_resolves, metadata={NAMES_A: REWARDS})
    """`package.module:function`, or `file.py:function` relative to the YAML file."""
    weight: float = attrs.field(default=1.0, validator=_is_finite)
    """Factor of its value in the score. With 0 it is only reported."""
    name: str = attrs.field(default="", validator=_is_name)
    """Name in metrics, `reward/<name>/mean`; the name of the function if left out."""
    args: Mapping[str, Any] = attrs.field(factory=dict)
    """Values of further parameters of the function, by name."""

    @property
    def label(self) -> str:
        """The name in metrics."""
        return self.name or self.use.rpartition(":")[2]
