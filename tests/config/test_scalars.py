"""Conversion of plain values to the types of options."""

import math
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from hooktrainer.config.conversion import convert
from hooktrainer.config.faults import Faults
from hooktrainer.config.scalars import Unread


def converted(value: object, expected: object) -> object:
    faults = Faults("x")
    result = convert(value, expected, faults)
    assert not faults.found
    return result


def fault(value: object, expected: object) -> str:
    faults = Faults("x")
    assert isinstance(convert(value, expected, faults), Unread)
    (found,) = faults.found
    return str(found)


@pytest.mark.parametrize(
    ("value", "expected", "result"),
    [
        (3, int, 3),
        (3, float, 3.0),
        (0.001, float, 0.001),
        ("1e-3", float, 0.001),
        (True, bool, True),
        ("a", str, "a"),
        ("off", Literal["off", "auto"], "off"),
        (False, Literal["off", "auto"], "off"),
        (True, Literal["on", "off"], "on"),
        (2, Literal[1, 2], 2),
        (None, int | None, None),
        (3, int | None, 3),
        (5, float | int, 5),
        (5, float | str, 5.0),
        ([1, 2], list[int] | int, [1, 2]),
        ([1, 2], list[int], [1, 2]),
        ([1, 2], tuple[int, ...], (1, 2)),
        ([1, "a"], tuple[int, str], (1, "a")),
        (["q", "v"], Sequence[str], ["q", "v"]),
        (["q"], frozenset[str], frozenset("q")),
        ([1, "a"], list, [1, "a"]),
        ({"a": 1}, dict[str, float], {"a": 1.0}),
        ({"a": {"b": [1]}}, Mapping[str, object], {"a": {"b": [1]}}),
        ({1: 2}, dict, {1: 2}),
        ("runs", Path, Path.cwd() / "runs"),
        ("~/runs", Path, Path.home() / "runs"),
        (3, Annotated[int, "unit"], 3),
        ([1], Any, [1]),
        (None, object, None),
    ],
)
def test_valid_value_is_converted(value: object, expected: object, result: object) -> None:
    found = converted(value, expected)
    assert found == result
    assert type(found) is type(result)


@pytest.mark.parametrize(
    ("value", "expected", "message"),
    [
        (True, int, "x: expected int, found True (bool)"),
        (1.5, int, "x: expected int, found 1.5 (float)"),
        (1000.0, int, "x: expected int, found 1000.0 (float); write 1000"),
        ("5", int, "x: expected int, found '5' (str)"),
        (None, int, "x: expected int, found nothing"),
        (True, float, "x: expected float, found True (bool)"),
        ("fast", float, "x: expected float, found 'fast' (str)"),
        (math.nan, float, "x: expected float, found nan (float); it must be finite"),
        ("inf", float, "x: expected float, found 'inf' (str); it must be finite"),
        (1, bool, "x: expected bool, found 1 (int); write true or false"),
        (1230000.0, str, "x: expected str, found 1230000.0 (float); to keep it as text, put it in quotes"),
        (False, str, "x: expected str, found False (bool); to keep it as text, put it in quotes"),
        ("dorp", Literal["drop", "wait"], "x: expected drop or wait, found 'dorp' (str). Did you mean 'drop'?"),
        (1, Literal[True], "x: expected True, found 1 (int)."),
        ("a", int | bool, "x: expected int | bool, found 'a' (str)"),
        ("a", int | None, "x: expected int, found 'a' (str)"),
        ("console", list[str], "x: expected a list, found 'console' (str); write [console]"),
        ({"a": 1}, list[str], "x: expected a list, found {'a': 1} (dict)"),
        ([1, "a"], list[int], "x[1]: expected int, found 'a' (str)"),
        ([1], tuple[int, int], "x: expected 2 values, found 1"),
        ([1], dict[str, int], "x: expected a mapping, found [1] (list)"),
        ({"a": "b"}, dict[str, int], "x.a: expected int, found 'b' (str)"),
        ({1: 2}, dict[str, int], "x.1: expected str, found 1 (int); to keep it as text, put it in quotes"),
        ("", Path, "x: expected Path, found '' (str); write a path"),
        (1, types.ModuleType, "x: an option of type module cannot be set from YAML"),
    ],
)
def test_invalid_value_is_a_fault_that_names_found_and_expected(value: object, expected: object, message: str) -> None:
    assert fault(value, expected) == message


def test_converted_containers_are_not_shared_with_the_source() -> None:
    source = {"a": [1, {"b": 2}]}
    for expected in (Any, dict, dict[str, Any], dict[str, list[Any]]):
        found = converted(source, expected)
        found["a"][1]["b"] = 3  # type: ignore[index]
        found["a"].append(4)  # type: ignore[index]
    assert source == {"a": [1, {"b": 2}]}
