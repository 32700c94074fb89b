import math

import attrs
import pytest
from attrs.validators import ge, in_

from hooktrainer.config import Config, PluginEntry, RunConfig
from hooktrainer.config.conversion import HINT, read
from hooktrainer.config.faults import Faults
from hooktrainer.config.fields import field_type, key_paths
from hooktrainer.config.scalars import Unread
from hooktrainer.errors import ConfigError, Fault
from hooktrainer.run.option_docs import field_docs, options_of, summary
from hooktrainer.run.registry import KINDS


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
    assert isinstance(read(cls, data, faults), Unread)
    return [str(found) for found in faults.found]


def test_a_nested_mapping_becomes_nested_objects() -> None:
    faults = Faults()
    outer = read(Outer, {"inner": {"size": 2}, "private": 5, "optional": None, "limit": math.inf}, faults)
    assert outer == Outer(inner=Inner(size=2), private=5, optional=None)
    assert not faults.found


def test_null_value_means_the_default() -> None:
    outer = read(Outer, {"inner": {"size": 2, "kind": None}, "private": None, "limit": None}, Faults())
    assert outer == Outer(inner=Inner(size=2))


def test_all_faults_are_reported_together_with_their_full_address() -> None:
    data = {"inner": {"size": 0, "kind": "c", "sise": 1}, "private": "x", "limit": -math.inf, "optoinal": 1, "low": 5}
    messages = faults_of(data | {"high": 4})
    assert [message.partition(":")[0] for message in messages] == [
        "optoinal", "inner.sise", "inner.size", "inner.kind", "private", "limit", "high"
    ]  # fmt: skip
    assert "unknown key 'optoinal'; the top level takes" in messages[0]
    assert messages[0].endswith("Did you mean 'optional'?")
    assert messages[1] == "inner.sise: unknown key 'sise'; inner takes size, kind. Did you mean 'size'?"
    assert messages[2] == "inner.size: expected a value >= 1, found 0 (int)"
    assert messages[-1] == "high: 4 is below low = 5"


def test_validators_that_read_a_faulty_option_add_no_fault() -> None:
    assert faults_of({"inner": {"size": 1}, "low": "x", "high": -3}) == ["low: expected int, found 'x' (str)"]


def test_missing_option_is_reported_with_its_type() -> None:
    assert faults_of({}) == ["inner: missing; a value is required (Inner)"]
    assert faults_of({"inner": {}}) == ["inner.size: missing; a value is required (int)"]
    assert faults_of({"inner": {"size": None}}) == ["inner.size: missing; a value is required (int)"]


def test_value_in_place_of_a_mapping_is_a_fault() -> None:
    assert faults_of({"inner": 3}) == ["inner: expected a mapping of options, found 3 (int)"]
    assert faults_of([1]) == [": expected a mapping of options, found [1] (list)".removeprefix(": ")]


def test_hint_of_a_field_is_appended_to_its_faults() -> None:
    (message,) = faults_of({"inner": {"size": 1}, "high": "x"})
    assert message == "high: expected int, found 'x' (str). Count from the bottom."


def test_private_keys_and_generated_fields_are_not_options() -> None:
    assert [message.partition(";")[0] for message in faults_of({"inner": {"size": 1}, "_private": 1, "made": []})] == [
        "_private: unknown key '_private'",
        "made: unknown key 'made'",
    ]


@attrs.frozen
class Picky:
    """Raises in its constructor."""

    size: int = 1
    fit: bool = True

    def __attrs_post_init__(self) -> None:
        if self.size == 2:
            raise ValueError("2 is no size")
        if not self.fit:
            raise ConfigError([Fault("", "does not fit"), Fault("elsewhere", "neither")])


def test_errors_raised_by_a_constructor_become_faults() -> None:
    assert faults_of({"picky": {"size": 2}}, attrs.make_class("Holder", {"picky": attrs.field(type=Picky)})) == [
        "picky: 2 is no size"
    ]
    assert faults_of({"fit": False}, Picky) == ["does not fit", "elsewhere: neither"]


@attrs.frozen
class Unlucky:
    """Has validators with bugs."""

    heads: int = attrs.field(default=1, validator=ge(1))
    width: int = attrs.field(default=4)
    kind: str = attrs.field(default="a")

    @width.validator
    def _known(self, _attribute: object, value: int) -> None:
        {4: "a"}[value]

    @kind.validator
    def _nowhere(self, _attribute: object, value: str) -> None:
        if value == "b":
            self.nothing  # noqa: B018

    def __attrs_post_init__(self) -> None:
        self.width // self.heads


def test_error_caused_by_a_faulty_value_is_not_reported() -> None:
    assert faults_of({"heads": 0}, Unlucky) == ["heads: expected a value >= 1, found 0 (int)"]


def test_bug_in_a_validator_is_reported_with_file_and_line() -> None:
    (first, second) = faults_of({"width": 5, "kind": "b"}, Unlucky)
    assert first.startswith("width: KeyError: 5 (")
    assert "test_conversion.py, line " in first
    assert second.startswith("kind: AttributeError: 'Unlucky' object has no attribute 'nothing' (")


def test_readable_options_are_returned_without_faulty_ones() -> None:
    found = read(Outer, {"inner": {"size": 2, "kind": "c"}, "low": "x", "hihg": 3}, Faults())
    assert isinstance(found, Unread)
    assert vars(found.inner) == {"size": 2}
    assert not hasattr(found, "low")
    assert not hasattr(found, "high")
    assert (found._private, found.optional) == (1, 3)


@attrs.define
class Unimported:
    """Has an annotation that is imported for the type checker only."""

    thing: "Nowhere | None" = None  # type: ignore[name-defined]  # noqa: F821
    size: int = 1


def test_unresolvable_type_is_a_fault_only_if_the_option_is_set() -> None:
    assert read(Unimported, {"size": 2}, Faults()) == Unimported(size=2)
    (message,) = faults_of({"thing": 1}, Unimported)
    assert message.startswith("thing: the type 'Nowhere | None' of this option cannot be read: name 'Nowhere'")


def test_unknown_key_of_another_section_is_suggested_with_its_path() -> None:
    faults = Faults(elsewhere=lambda: key_paths(Config))
    faults.unknown("trainr", ["seed"], "the top level")
    faults.at("optim").unknown("total_steps", ["lr"], "optim")
    assert [str(found) for found in faults.found] == [
        "trainr: unknown key 'trainr'; the top level takes seed. Did you mean 'trainer'?",
        "optim.total_steps: unknown key 'total_steps'; optim takes lr. Did you mean 'trainer.total_steps'?",
    ]


class Plain(Inner):
    """Adds nothing."""


def test_field_documentation_is_read_from_the_source_including_base_classes() -> None:
    assert field_docs(Plain) == {"size": "How large.", "kind": "Which one."}
    assert [(option.name, option.type, option.default, option.doc) for option in options_of(Outer)][:3] == [
        ("inner", "Inner", "", "Nested."),
        ("private", "int", "1", "Its key has no underscore."),
        ("limit", "float", "inf", "No limit."),
    ]
    assert summary(Outer) == "The first paragraph, on two lines."
    assert field_docs(attrs.make_class("NoSource", ["x"])) == {}


def _configurable() -> list[type]:
    registered = [KINDS[kind].resolve(name) for kind in KINDS for name in KINDS[kind]]
    built_in = [cls for cls in registered if cls.__module__.startswith("hooktrainer")]
    sections = [field_type(Config, field) for field in attrs.fields(Config)]
    return [*built_in, Config, PluginEntry, *dict.fromkeys(cls for cls in sections if attrs.has(cls))]


@pytest.mark.parametrize("cls", _configurable(), ids=lambda cls: cls.__name__)
def test_every_class_and_option_is_documented(cls: type) -> None:
    assert summary(cls)
    assert [option.name for option in options_of(cls) if not option.doc] == []


def test_the_default_of_a_path_is_shown_relative_to_the_working_directory() -> None:
    shown = {option.name: option.default for option in options_of(RunConfig)}
    assert shown == {"name": "the name of the first YAML file", "dir": "'runs'", "resume": "'off'"}
