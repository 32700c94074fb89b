"""Convert YAML scalars to Python types: strictly, except where YAML reads a value differently from how it looks.

Each function returns the value, or `INVALID` with the end of a sentence that shows how to write it.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from hooktrainer.errors import did_you_mean


class Unread(types.SimpleNamespace):
    """Placeholder for a faulty value; for an object it holds the fields that could be read."""

    def __repr__(self) -> str:
        return "???"


INVALID: Final = Unread()


def to_bool(value: Any) -> tuple[Any, str]:
    """Convert to a boolean; 0 and 1 are numbers."""
    return (value, "") if isinstance(value, bool) else (INVALID, "; write true or false")


def to_int(value: Any) -> tuple[Any, str]:
    """Convert to an integer; booleans are refused."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value, ""
    whole = isinstance(value, float) and value.is_integer() and abs(value) < 2**53
    return INVALID, f"; write {int(value)}" if whole else ""


def to_float(value: Any) -> tuple[Any, str]:
    """Convert to a finite number; text is accepted, since PyYAML reads 1e-3 as text."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return INVALID, ""
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return INVALID, ""
    return (number, "") if math.isfinite(number) else (INVALID, "; it must be finite")


def to_str(value: Any) -> tuple[Any, str]:
    """Convert to text; numbers and booleans are refused, since their spelling is lost (123E4)."""
    if isinstance(value, str):
        return value, ""
    scalar = isinstance(value, (int, float))
    return INVALID, "; to keep it as text, put it in quotes" if scalar else ""


def to_path(value: Any) -> tuple[Any, str]:
    """Convert to an absolute path, so that a later change of directory does not affect it."""
    if isinstance(value, (str, Path)) and str(value):
        return Path(value).expanduser().absolute(), ""
    return INVALID, "; write a path"


def choose(value: Any, choices: tuple[Any, ...]) -> tuple[Any, str]:
    """Return the matching choice of a `Literal`; YAML reads `on` and `off` as booleans."""
    word = {True: "on", False: "off"}[value] if isinstance(value, bool) else value
    for choice in choices:
        if any(choice == found and type(choice) is type(found) for found in (value, word)):
            return choice, ""
    return INVALID, f".{did_you_mean(str(value), map(str, choices))}"


SCALARS: Final[Mapping[object, Callable[[Any], tuple[Any, str]]]] = {
    bool: to_bool,
    int: to_int,
    float: to_float,
    str: to_str,
    Path: to_path,
}
