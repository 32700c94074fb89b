"""Arguments of the registered functions that are no key of the `algorithm` section; known without importing torch."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, cast

import attrs

from hooktrainer.algorithms import registry
from hooktrainer.algorithms.options import AlgorithmOptions
from hooktrainer.errors import ConfigError, Fault, did_you_mean

MAX_RATIO: Final = 5.0
"""Default of `cispo_max_ratio`."""


@attrs.frozen
class Argument:
    """An argument that is a number."""

    default: float
    rule: str
    """The values that are allowed, for messages."""
    allows: Callable[[float, AlgorithmOptions], bool]


_EPSILON: Final = Argument(1e-6, "a finite number of at least 0", lambda value, _: 0 <= value < math.inf)
_MIN_RATIO: Final = Argument(
    0.0,
    "0 <= cispo_min_ratio <= cispo_max_ratio",
    lambda value, algorithm: (
        0 <= value <= (MAX_RATIO if algorithm.cispo_max_ratio is None else algorithm.cispo_max_ratio)
    ),
)
ARGUMENTS: Final[Mapping[str, Mapping[str, Argument]]] = MappingProxyType(
    {"grpo": {"epsilon": _EPSILON}, "maxrl": {"epsilon": _EPSILON}, "cispo": {"cispo_min_ratio": _MIN_RATIO}}
)
"""Arguments by name of the function; functions not listed take none."""

BOUNDS: Final[Mapping[str, tuple[float, float]]] = MappingProxyType(
    {
        "tis_token": (0.0, 2.0),
        "tis_sequence": (0.0, 2.0),
        "icepop": (0.5, 5.0),
        "mis_token": (0.0, 2.0),
        "mis_sequence": (0.0, 2.0),
        "mask_geometric": (0.99, 1.01),
        "mask_product": (0.5, 2.0),
    }
)
"""Defaults of the lower and upper bound of each behaviour weight."""


def argument_faults(algorithm: AlgorithmOptions) -> Iterator[Fault]:
    """Yield the faults in arguments and bounds of registered functions; those of the user are bound instead."""
    for key, args_key in (("adv_estimator", "adv_args"), ("policy_loss", "policy_loss_args")):
        name, args = getattr(algorithm, key), getattr(algorithm, args_key)
        if name in registry.FUNCTIONS[key]:
            for argument, value in args.items():
                if fault := _fault(algorithm, name, argument, value):
                    yield Fault(f"algorithm.{args_key}.{argument}", fault)
    weight = algorithm.behaviour_weight
    if weight in BOUNDS:
        given = algorithm.behaviour_weight_args
        low, high = given.get("low", BOUNDS[weight][0]), given.get("high", BOUNDS[weight][1])
        if low > high:
            key = "behaviour_weight_low" if "low" in given else "behaviour_weight_high"
            yield Fault(f"algorithm.{key}", f"expected low <= high; with {weight}, low is {low} and high is {high}")


def _fault(algorithm: AlgorithmOptions, name: str, argument: str, value: Any) -> str:
    """Return why an argument is refused; empty if it is allowed."""
    section = {field.name for field in attrs.fields(AlgorithmOptions)}
    takes = ARGUMENTS.get(name, {})
    if argument not in takes:
        if argument in section:
            return f"'{argument}' is a key of the algorithm section itself: write algorithm.{argument}"
        known = ", ".join(takes) or "none"
        return f"unknown argument '{argument}'; '{name}' takes {known}.{did_you_mean(argument, takes)}"
    rule = takes[argument]
    try:
        parameter = inspect.Parameter(argument, inspect.Parameter.KEYWORD_ONLY, default=rule.default)
        number = cast("float", registry.converted(name, argument, value, parameter))
    except ConfigError as error:
        return str(error)
    return "" if rule.allows(number, algorithm) else f"expected {rule.rule}, found {value}"
