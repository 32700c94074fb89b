import math
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import attrs
import pytest
from attrs.validators import ge, in_

from hooktrainer.config import Config, PluginEntry
from hooktrainer.errors import ConfigError, Fault
from hooktrainer.faults import Faults
from hooktrainer.options import field_docs, options_of, summary
from hooktrainer.registry import GROUPS, known, resolve
from hooktrainer.scalars import INVALID
from hooktrainer.schema import HINT, convert, field_type, key_paths, read


def converted(value: object, expected: object) -> object:
    faults = Faults("x")
    result = convert(value, expected, faults)
    assert not faults.found
    return result


def fault(value: object, expected: object) -> str:
    faults = Faults("x")
    assert convert(value, expected, faults) is INVALID
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
def test_a_value_that_fits_is_converted(value: object, expected: object, result: object) -> None:
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
def test_a_value_that_does_not_fit_is_a_fault_with_found_and_expected(
    value: object, expected: object, message: str
) -> None:
    assert fault(value, expected) == message


def test_containers_are_never_shared_with_the_source() -> None:
    source = {"a": [1, {"b": 2}]}
    for expected in (Any, dict, dict[str, Any], dict[str, list[Any]]):
        found = converted(source, expected)
        found["a"][1]["b"] = 3  # type: ignore[index]
        found["a"].append(4)  # type: ignore[index]
    assert source == {"a": [1, {"b": 2}]}


@attrs.frozen(kw_only=True)
class Inner:
    """Inside."""

    size: int = attrs.field(validator=ge(1))
    """How large."""
    kind: str = attrs.field(default="a", validator=in_(["a", "b"]))
    """Which one."""


@attrs.frozen(kw_only=True)
class Outer:
    """The first paragraph,
    on two lines.

    The second.
    """

    inner: Inner
    """Nested."""
    _private: int = 1
    """Its key has no underscore."""
    limit: float = math.inf
    """No limit."""
    optional: int | None = 3
    undocumented: bool = False
    low: int = 0
    """Not above `high`."""
    high: int = attrs.field(default=1, metadata={HINT: "Count from the bottom."})
    """Not below `low`."""
    made: list[int] = attrs.field(factory=lambda: [1], init=False)
    """Set by nobody."""

    @high.validator
    def _ordered(self, _attribute: object, value: int) -> None:
        if value < self.low:
            raise ValueError(f"{value} is below low = {self.low}")


def faults_of(data: object, cls: type = Outer) -> list[str]:
    faults = Faults()
    assert read(cls, data, faults) is None
    return [str(found) for found in faults.found]


def test_a_nested_mapping_becomes_nested_objects() -> None:
    faults = Faults()
    outer = read(Outer, {"inner": {"size": 2}, "private": 5, "optional": None, "limit": math.inf}, faults)
    assert outer == Outer(inner=Inner(size=2), private=5, optional=None)
    assert not faults.found


def test_a_key_with_nothing_behind_it_means_the_default() -> None:
    outer = read(Outer, {"inner": {"size": 2, "kind": None}, "private": None, "limit": None}, Faults())
    assert outer == Outer(inner=Inner(size=2))


def test_every_fault_is_found_at_once_with_its_full_address() -> None:
    data = {"inner": {"size": 0, "kind": "c", "sise": 1}, "private": "x", "limit": -math.inf, "optoinal": 1, "low": 5}
    messages = faults_of(data | {"high": 4})
    assert [message.partition(":")[0] for message in messages] == [
        "optoinal", "inner.sise", "inner.size", "inner.kind", "private", "limit", "high"
    ]  # fmt: skip
    assert "unknown key 'optoinal'; the top level takes" in messages[0]
    assert messages[0].endswith("Did you mean 'optional'?")
    assert messages[1] == "inner.sise: unknown key 'sise'; inner takes size, kind. Did you mean 'size'?"
    assert messages[2] == "inner.size: 'size' must be >= 1: 0"
    assert messages[-1] == "high: 4 is below low = 5"


def test_validators_that_compare_with_an_unreadable_option_say_nothing() -> None:
    assert faults_of({"inner": {"size": 1}, "low": "x", "high": -3}) == ["low: expected int, found 'x' (str)"]


def test_a_missing_value_is_named_with_its_type() -> None:
    assert faults_of({}) == ["inner: missing; a value is required (Inner)"]
    assert faults_of({"inner": {}}) == ["inner.size: missing; a value is required (int)"]
    assert faults_of({"inner": {"size": None}}) == ["inner.size: missing; a value is required (int)"]


def test_no_mapping_where_one_is_expected_is_a_fault() -> None:
    assert faults_of({"inner": 3}) == ["inner: expected a mapping of options, found 3 (int)"]
    assert faults_of([1]) == [": expected a mapping of options, found [1] (list)".removeprefix(": ")]


def test_a_hint_of_the_field_ends_its_faults() -> None:
    (message,) = faults_of({"inner": {"size": 1}, "high": "x"})
    assert message == "high: expected int, found 'x' (str) Count from the bottom."


def test_private_and_generated_fields_are_no_options() -> None:
    assert [message.partition(";")[0] for message in faults_of({"inner": {"size": 1}, "_private": 1, "made": []})] == [
        "_private: unknown key '_private'",
        "made: unknown key 'made'",
    ]


@attrs.frozen
class Picky:
    """Raises on its own."""

    size: int = 1
    fit: bool = True

    def __attrs_post_init__(self) -> None:
        if self.size == 2:
            raise ValueError("2 is no size")
        if not self.fit:
            raise ConfigError([Fault("", "does not fit"), Fault("elsewhere", "neither")])


def test_what_a_class_raises_itself_becomes_faults() -> None:
    assert faults_of({"picky": {"size": 2}}, attrs.make_class("Holder", {"picky": attrs.field(type=Picky)})) == [
        "picky: 2 is no size"
    ]
    assert faults_of({"fit": False}, Picky) == ["does not fit", "elsewhere: neither"]


@attrs.define
class Unimported:
    """Its annotations name what exists for the type checker alone."""

    thing: "Nowhere | None" = None  # type: ignore[name-defined]  # noqa: F821
    size: int = 1


def test_a_type_that_is_not_imported_is_a_fault_only_if_the_option_is_set() -> None:
    assert read(Unimported, {"size": 2}, Faults()) == Unimported(size=2)
    (message,) = faults_of({"thing": 1}, Unimported)
    assert message.startswith("thing: the type 'Nowhere | None' of this option cannot be read: name 'Nowhere'")


def test_an_unknown_key_that_exists_elsewhere_is_suggested_with_its_path() -> None:
    faults = Faults(elsewhere=lambda: key_paths(Config))
    faults.unknown("trainr", ["seed"], "the top level")
    faults.at("optim").unknown("total_steps", ["lr"], "optim")
    assert [str(found) for found in faults.found] == [
        "trainr: unknown key 'trainr'; the top level takes seed. Did you mean 'trainer'?",
        "optim.total_steps: unknown key 'total_steps'; optim takes lr. Did you mean 'trainer.total_steps'?",
    ]


class Plain(Inner):
    """Adds nothing."""


def test_documentation_is_read_from_the_source_along_the_mro() -> None:
    assert field_docs(Plain) == {"size": "How large.", "kind": "Which one."}
    assert [(option.name, option.type, option.default, option.doc) for option in options_of(Outer)][:3] == [
        ("inner", "Inner", "", "Nested."),
        ("private", "int", "1", "Its key has no underscore."),
        ("limit", "float", "inf", "No limit."),
    ]
    assert summary(Outer) == "The first paragraph, on two lines."
    assert field_docs(attrs.make_class("NoSource", ["x"])) == {}


def _configurable() -> list[type]:
    registered = [resolve(group, name) for group in GROUPS if group != "sinks" for name in known(group)]
    built_in = [cls for cls in registered if cls.__module__.startswith("hooktrainer")]
    sections = [field_type(Config, field) for field in attrs.fields(Config)]
    return [*built_in, Config, PluginEntry, *dict.fromkeys(cls for cls in sections if attrs.has(cls))]


@pytest.mark.parametrize("cls", _configurable(), ids=lambda cls: cls.__name__)
def test_every_class_and_option_is_documented(cls: type) -> None:
    assert summary(cls)
    assert [option.name for option in options_of(cls) if not option.doc] == []
