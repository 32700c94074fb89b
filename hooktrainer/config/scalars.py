"""Convert YAML scalars to Python types: strictly, except where YAML reads a value differently from how it looks.

Each function returns the value, or `INVALID` with the end of a sentence that shows how to write it.
"""

from __future__ import annotations

import math
import os
import re
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Self

from hooktrainer.config.file_names import path_fault
from hooktrainer.config.yaml_text import read_scalar
from hooktrainer.errors import did_you_mean

_WORDS: Final = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_NULLS: Final = ("None", "null", "Null", "NULL", "~")
_NUMBER: Final = r"[-+]?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"


class Unread(types.SimpleNamespace):
    """Placeholder for a faulty value; for an object it holds the fields that could be read."""

    def __repr__(self) -> str:
        return "???"


INVALID: Final = Unread()


class EnvironmentText(str):
    """The text of an environment variable, which options of every type accept as if it were written in the YAML."""

    __slots__ = ("variable",)
    variable: str

    def __new__(cls, text: str, variable: str) -> Self:
        """Keep the name of the variable for faults."""
        made = super().__new__(cls, text)
        made.variable = variable
        return made

    def __deepcopy__(self, memo: object) -> Self:  # text cannot change
        return self

    def __repr__(self) -> str:
        return f"{str(self)!r} of the environment variable {self.variable}"


def without_variables(value: Any) -> Any:
    """Return data in which the text of environment variables is ordinary text."""
    if isinstance(value, EnvironmentText):
        return str(value)
    if isinstance(value, dict):
        return {key: without_variables(item) for key, item in value.items()}
    return [without_variables(item) for item in value] if type(value) is list else value


def holds(value: Any, kind: type) -> bool:
    """Return whether a value, or one inside of it, is of a type."""
    items = value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else ()
    return isinstance(value, kind) or any(holds(item, kind) for item in items)


def no_value(value: Any) -> bool:
    """Return whether text looks like null; quotes, or None in place of null, make it text."""
    return isinstance(value, str) and value in _NULLS


def to_bool(value: Any) -> tuple[Any, str]:
    """Convert to a boolean, also the words of YAML 1.1; 0 and 1 are numbers."""
    word = _WORDS.get(value.lower()) if isinstance(value, str) else value
    return (word, "") if isinstance(word, bool) else (INVALID, "; write true or false")


def to_int(value: Any) -> tuple[Any, str]:
    """Convert to an integer; booleans are refused."""
    if isinstance(value, EnvironmentText):
        value = read_scalar(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value, ""
    whole = isinstance(value, float) and value.is_integer() and abs(value) < 2**53
    return INVALID, f"; write {int(value)}" if whole else _digits_only(value)


def to_float(value: Any) -> tuple[Any, str]:
    """Convert to a finite number; text is accepted, since PyYAML reads 1e-3 as text."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return INVALID, ""
    if isinstance(value, str) and not re.fullmatch(_NUMBER, value):
        endless = value.lower().lstrip("+-.") in {"inf", "infinity", "nan"}
        return INVALID, "; it must be finite" if endless else _digits_only(value)
    try:
        number = float(value)
    except OverflowError:
        return INVALID, "; it must be finite"
    return (number, "") if math.isfinite(number) else (INVALID, "; it must be finite")


def to_str(value: Any) -> tuple[Any, str]:
    """Convert to text; numbers and booleans are refused, since their spelling is lost (123E4)."""
    if isinstance(value, str) and not no_value(value):
        return str(value), ""
    scalar = isinstance(value, (int, float))
    return INVALID, "; to keep it as text, put it in quotes" if scalar else ""


def to_path(value: Any) -> tuple[Any, str]:
    """Convert to an absolute path, so that a later change of directory does not affect it."""
    if isinstance(value, (str, Path)) and str(value) and not no_value(value):
        expanded = os.path.expanduser(value)  # noqa: PTH111 (pathlib drops the ./ of a name that starts with ~)
        if not expanded.startswith("~"):
            fault = path_fault(os.path.join(os.getcwd(), expanded))  # noqa: PTH109, PTH118 (pathlib refuses some)
            return (INVALID, f"; {fault}") if fault else (Path(expanded).absolute(), "")
        return INVALID, "; it has no home directory. Write the whole path, or ./~ for a name that starts with ~"
    return INVALID, "; write a path"


def choose(value: Any, choices: tuple[Any, ...]) -> tuple[Any, str]:
    """Return the matching choice of a `Literal`; plain data from PyYAML has `on` and `off` as booleans."""
    words = [value]
    if isinstance(value, bool):
        words.append("on" if value else "off")
    elif isinstance(value, EnvironmentText):
        words = [str(value), read_scalar(value)]
    for choice in choices:
        if any(choice == word and type(choice) is type(word) for word in words):
            return choice, ""
    return INVALID, f".{did_you_mean(str(value), map(str, choices))}"


def _digits_only(value: Any) -> str:
    """Return how to write a number that other readers of YAML take for octal, sexagesimal or grouped digits."""
    if isinstance(value, str) and re.fullmatch(r"[-+]?0[0-9]+", value):
        return f"; write {int(value)}, since YAML 1.1 reads a leading 0 as octal"
    if isinstance(value, str) and re.fullmatch(r"[-+]?[0-9]+(_[0-9]+)+(\.[0-9]+)?", value):
        return f"; write {value.replace('_', '')}"
    if isinstance(value, str) and re.fullmatch(r"[-+]?[0-9]+(:[0-9]+)+", value):
        return "; write one number, such as 90"
    return ""


SCALARS: Final[Mapping[object, Callable[[Any], tuple[Any, str]]]] = {
    bool: to_bool,
    int: to_int,
    float: to_float,
    str: to_str,
    Path: to_path,
}
