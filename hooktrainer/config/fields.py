"""Keys, types and defaults of the fields of an attrs class."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Sequence
from typing import Any

import attrs

from hooktrainer._util.registry import NAMES_A
from hooktrainer.errors import ConfigError

DEFAULT: typing.Final = "hooktrainer.default"
"""Key of field metadata: how the default of an option that the class requires is described."""
Fields: typing.TypeAlias = Sequence["attrs.Attribute[Any]"]


def init_fields(cls: type) -> Fields:
    """Return the fields that the constructor of an attrs class takes."""
    return tuple(field for field in attrs.fields(typing.cast("Any", cls)) if field.init)


def option_name(field: attrs.Attribute[Any]) -> str:
    """Return the key of a field in YAML, which is its name in the constructor."""
    return field.alias or field.name


def is_named(cls: type) -> bool:
    """Return whether an object of the class may be written as a name alone, the value of its option `use`."""
    return any(option_name(field) == "use" and NAMES_A in field.metadata for field in init_fields(cls))


def bare_attributes(cls: type) -> dict[str, object]:
    """Return the attributes of a class without a type whose value could be that of an option; attrs ignores them.

    An attribute that overrides a property of a base is none of them.
    """
    found: dict[str, object] = {}
    properties: set[str] = set()
    for base in reversed(cls.__mro__[:-1]):
        annotated = inspect.get_annotations(base)
        plain = {key: value for key, value in vars(base).items() if type(value) in (bool, int, float, str, list, dict)}
        known = annotated.keys() | properties
        found |= {key: value for key, value in plain.items() if not key.startswith("_") and key not in known}
        properties |= {key for key, value in vars(base).items() if isinstance(value, property)}
    return found


def default_of(field: attrs.Attribute[Any]) -> Any:
    """Return the default of a field; `attrs.NOTHING` if it has none, or one that depends on the object."""
    default: Any = field.default
    if isinstance(default, attrs.Factory):  # type: ignore[arg-type]
        return attrs.NOTHING if default.takes_self else default.factory()
    return default


def type_name(expected: Any) -> str:
    """Return a type as it is written in source."""
    if isinstance(expected, str):
        return expected
    if isinstance(expected, type) and not typing.get_args(expected):
        return expected.__name__
    return "Any" if expected is None else inspect.formatannotation(expected)


def takes_none(expected: Any) -> bool:
    """Return whether None is a value of a type."""
    return expected in (Any, object) or types.NoneType in typing.get_args(expected)


def field_type(cls: type, field: attrs.Attribute[Any]) -> Any:
    """Return the type of a field. Raises `ConfigError` if its annotation contains an unknown name."""
    if not isinstance(field.type, str):
        return Any if field.type is None else field.type
    home = next(base for base in cls.__mro__ if field.name in inspect.get_annotations(base))
    alone = type(home.__name__, (), {"__annotations__": {field.name: field.type}, "__module__": home.__module__})
    try:
        return typing.get_type_hints(alone, include_extras=True)[field.name]
    except (NameError, AttributeError, TypeError) as error:
        text = f"the type '{field.type}' of this option cannot be read: {error}. Import it outside of TYPE_CHECKING."
        raise ConfigError(text) from error


def key_paths(cls: type, address: str = "") -> dict[str, str]:
    """Return the full path of every key in a tree of attrs classes; of equal keys, the outer one wins."""
    paths: dict[str, str] = {}
    for field in init_fields(cls):
        key, expected = option_name(field), field_type(cls, field)
        path = f"{address}.{key}" if address else key
        if isinstance(expected, type) and attrs.has(expected) and not hasattr(expected, "from_plain"):
            paths = key_paths(expected, path) | paths
        paths[key] = path
    return paths


def annotation_hint(cls: type, key: object) -> str:
    """Return how to make an option of an attribute without a type, which attrs ignores; empty for other keys."""
    bare = bare_attributes(cls)
    if key not in bare:
        return ""
    text = f"annotate it: {key}: {type(bare[str(key)]).__name__} = {bare[str(key)]!r}"
    return f"{cls.__name__} has it as an attribute without a type, which is not an option; {text}"
