"""Values that reward functions return, checked and converted to numbers."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from numbers import Real
from typing import Any

import attrs
import numpy as np

from hooktrainer.errors import did_you_mean, shortened

_LONGEST = 100


class BadReturnError(Exception):
    """A reward function returned an unusable value; the text completes the sentence `the reward ...`."""


@attrs.frozen
class Value:
    """The value of one answer, None if the reward does not apply to it, and further numbers to report."""

    number: float | None
    metrics: Mapping[str, float] = attrs.field(factory=dict)


def value_of(found: object) -> Value:
    """Return the value of one answer: a number, None, or a dictionary with `score` as verl takes it."""
    if not isinstance(found, Mapping):
        return Value(_number(found, "a number, or a dictionary with 'score'"))
    if "score" not in found:
        keys = ", ".join(map(str, found)) or "nothing"
        near = did_you_mean("score", map(str, found))
        raise BadReturnError(f"returned a dictionary without 'score'; it has {shortened(keys, _LONGEST)}.{near}")
    numbers = {str(key): _as_float(value) for key, value in found.items() if key != "score" and is_real(value)}
    return Value(_number(found["score"], "a number in 'score'"), numbers)


def values_of_group(found: object, count: int) -> list[Value]:
    """Return the value of each answer from a list, or a one-dimensional tensor, with one number for each answer."""
    expected = f"a list of {count} numbers, one for each answer"
    if isinstance(found, (str, bytes, Mapping)) or not isinstance(found, Sequence):
        shape = getattr(found, "shape", None)
        if shape is None or not hasattr(found, "tolist"):
            raise BadReturnError(f"returned {described(found)}; expected {expected}")
        if len(shape) != 1:
            raise BadReturnError(f"returned {described(found)}; expected {expected}, of shape ({count},)")
        found = found.tolist()
    assert isinstance(found, Sequence)
    if len(found) != count:
        raise BadReturnError(f"returned {len(found)} values for {count} answers; expected {expected}")
    if pending := [value for value in found if inspect.isawaitable(value)]:
        for value in pending:
            getattr(value, "close", lambda: None)()  # otherwise Python warns that it was never awaited
        raise BadReturnError(f"returned {type(pending[0]).__name__} objects that were not awaited; expected {expected}")
    return [Value(_number(value, "a number or None for each answer")) for value in found]


def described(found: object) -> str:
    """Return a value and its type, or the shape of a tensor, for messages."""
    if found is None:
        return "None"
    shape = getattr(found, "shape", None)
    if shape is not None and not isinstance(found, np.generic):
        return f"a {type(found).__name__} of shape {tuple(shape)}"
    if inspect.isgenerator(found) or inspect.isasyncgen(found):
        return "a generator (the function has a yield)"
    return f"{shortened(repr(found), _LONGEST)} ({type(found).__name__})"


def _number(found: Any, expected: str) -> float | None:
    if found is None:
        return None
    if _num_elements(found) == 1 and callable(getattr(found, "item", None)):
        found = found.item()
    if not is_real(found) and not isinstance(found, Decimal):
        raise BadReturnError(f"returned {described(found)}; expected {expected}")
    number = _as_float(found)
    if not math.isfinite(number):
        raise BadReturnError(f"returned {number}; expected a finite number")
    return number


def _as_float(found: Any) -> float:
    try:
        return float(found)
    except (OverflowError, ValueError) as error:  # an integer or fraction that is too large, a signalling NaN
        raise BadReturnError(f"returned a value of type {type(found).__name__} that is no float: {error}") from None


def _num_elements(found: Any) -> int:
    shape = getattr(found, "shape", None)
    return math.prod(shape) if isinstance(shape, Sequence) else 0


def is_real(found: object) -> bool:
    """Return whether a value is a real number; True and False are 1 and 0."""
    return isinstance(found, (Real, np.bool_))
