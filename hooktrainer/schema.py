"""Plain data into typed attrs objects.

Every fault is collected, with its full address, what was found and what was expected. Two rules hold for all options: a
key with nothing behind it means the default, unless the option may be None itself; a path is made absolute when read.
"""

from __future__ import annotations

import copy
import inspect
import itertools
import math
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Literal, TypeVar

import attrs

from hooktrainer.errors import ConfigError
from hooktrainer.faults import Faults, shown
from hooktrainer.scalars import INVALID, SCALARS, choose

T = TypeVar("T")
Fields: typing.TypeAlias = Sequence["attrs.Attribute[Any]"]

HINT: Final = "hooktrainer.hint"
"""Key of field metadata: a sentence that ends the faults of the field."""


def read(cls: type[T], data: object, faults: Faults) -> T | None:
    """An object of an attrs class from a mapping; None if a fault was found.

    A class with a `from_plain(data, faults)` of its own is asked instead.
    """
    if isinstance(data, cls):
        return data
    if own := getattr(cls, "from_plain", None):
        return typing.cast("T | None", own(data, faults))
    return read_fields(cls, init_fields(cls), {} if data is None else data, faults, faults.address or "the top level")


def read_fields(cls: type[T], fields: Fields, data: object, faults: Faults, owner: str) -> T | None:
    """An object of `cls` of which only `fields` may be set; None if a fault was found."""
    if not isinstance(data, Mapping):
        faults.add(f"expected a mapping of options, found {shown(data)}")
        return None
    before = len(faults)
    known = {option_name(field): field for field in fields}
    for key in data:
        if key not in known:
            faults.unknown(key, known, owner)
    converted = {name: _read_field(cls, field, data, faults.at(name)) for name, field in known.items()}
    values = {name: value for name, value in converted.items() if value is not INVALID}
    if len(faults) > before:
        partial = types.SimpleNamespace(**{known[name].name: value for name, value in values.items()})
        for name, value in values.items():
            with suppress(AttributeError):  # it compares with an option that could not be read
                _validate(partial, known[name], value, faults.at(name))
        return None
    instance = _construct(cls, values, faults)
    if instance is not None:
        for name in values:
            _validate(instance, known[name], getattr(instance, known[name].name), faults.at(name))
    return None if len(faults) > before else instance


def _read_field(cls: type, field: attrs.Attribute[Any], data: Mapping[str, object], faults: Faults) -> Any:
    name = option_name(field)
    value, expected = data.get(name), Any
    if name in data:
        try:
            expected = field_type(cls, field)
        except ConfigError as error:
            faults.absorb(error)
            return INVALID
    if value is None and not (name in data and _takes_none(expected)):
        if field.default is attrs.NOTHING:
            faults.add(f"missing; a value is required ({type_name(field.type)})")
        return INVALID
    if isinstance(value, float) and math.isinf(value) and field.default == value:
        return value  # infinity makes sense where it is the default
    trial = attrs.evolve(faults, found=[])
    converted = convert(value, expected, trial)
    ending = f" {field.metadata[HINT]}" if HINT in field.metadata else ""
    faults.found.extend(attrs.evolve(fault, message=fault.message + ending) for fault in trial.found)
    return converted


def _construct(cls: type[T], values: Mapping[str, object], faults: Faults) -> T | None:
    try:
        with attrs.validators.disabled():  # they run one by one afterwards, so that each gives its own fault
            return cls(**values)
    except ConfigError as error:
        faults.absorb(error)
    except (ValueError, TypeError) as error:
        faults.add(_message(error))
    return None


def _validate(instance: object, field: attrs.Attribute[Any], value: object, faults: Faults) -> None:
    if field.validator is not None:
        try:
            field.validator(instance, field, value)
        except ConfigError as error:
            faults.absorb(error)
        except (ValueError, TypeError) as error:
            faults.add(_message(error))


def _message(error: Exception) -> str:
    return str(error.args[0]) if error.args else type(error).__name__


def convert(value: Any, expected: Any, faults: Faults) -> Any:
    """`value` as the type `expected`, sharing no container with it; `INVALID` if a fault was found."""
    origin = typing.get_origin(expected) or expected
    if origin is typing.Annotated:
        return convert(value, typing.get_args(expected)[0], faults)
    reader = _READERS.get(origin, _class)
    return reader(value, expected, faults)


def _anything(value: Any, expected: Any, faults: Faults) -> Any:  # noqa: ARG001 (one signature for all readers)
    return copy.deepcopy(value)


def _scalar(value: Any, expected: Any, faults: Faults) -> Any:
    choices = typing.get_args(expected)
    converted, ending = choose(value, choices) if choices else SCALARS[expected](value)
    if converted is INVALID:
        faults.add(f"expected {' or '.join(map(str, choices)) or type_name(expected)}, found {shown(value)}{ending}")
    return converted


def _union(value: Any, expected: Any, faults: Faults) -> Any:
    arms = [arm for arm in typing.get_args(expected) if arm is not types.NoneType]
    if value is None and len(arms) < len(typing.get_args(expected)):
        return None
    if len(arms) == 1:
        return convert(value, arms[0], faults)
    for arm in sorted(arms, key=lambda arm: arm is not type(value)):  # 5 stays an integer in `float | int`
        trial = attrs.evolve(faults, found=[])
        converted = convert(value, arm, trial)
        if not trial.found:
            return converted
    faults.add(f"expected {type_name(expected)}, found {shown(value)}")
    return INVALID


def _sequence(value: Any, expected: Any, faults: Faults) -> Any:
    arms, make = typing.get_args(expected) or (Any,), _SEQUENCES[typing.get_origin(expected) or expected]
    if not isinstance(value, (list, tuple, set, frozenset)):
        one = isinstance(value, (str, int, float))
        faults.add(f"expected a list, found {shown(value)}{f'; write [{value}]' if one else ''}")
        return INVALID
    if make is tuple and typing.get_args(expected) and arms[-1] is not Ellipsis:
        if len(arms) != len(value):
            faults.add(f"expected {len(arms)} values, found {len(value)}")
            return INVALID
    else:
        arms = (arms[0],) * len(value)
    items = [convert(*pair, faults.at(place)) for place, pair in enumerate(zip(value, arms, strict=True))]
    return INVALID if any(item is INVALID for item in items) else make(items)


def _mapping(value: Any, expected: Any, faults: Faults) -> Any:
    if not isinstance(value, Mapping):
        faults.add(f"expected a mapping, found {shown(value)}")
        return INVALID
    of_keys, of_items = typing.get_args(expected) or (Any, Any)
    keys = [convert(key, of_keys, faults.at(str(key))) for key in value]
    items = [convert(item, of_items, faults.at(str(key))) for key, item in value.items()]
    wrong = any(found is INVALID for found in itertools.chain(keys, items))
    return INVALID if wrong else dict(zip(keys, items, strict=True))


def _class(value: Any, expected: Any, faults: Faults) -> Any:
    origin = typing.get_origin(expected) or expected
    if isinstance(origin, type) and attrs.has(origin):
        found = read(origin, value, faults)
        return INVALID if found is None else found
    if isinstance(origin, type) and isinstance(value, origin):
        return value
    faults.add(f"an option of type {type_name(expected)} cannot be set from YAML")
    return INVALID


_SEQUENCES: Final[Mapping[object, Callable[[Iterable[Any]], Any]]] = {
    list: list,
    tuple: tuple,
    set: set,
    frozenset: frozenset,
    Sequence: list,
    Iterable: list,
}
_READERS: Final[Mapping[object, Callable[[Any, Any, Faults], Any]]] = {
    Any: _anything,
    object: _anything,
    typing.Union: _union,
    types.UnionType: _union,
    Literal: _scalar,
    dict: _mapping,
    Mapping: _mapping,
    **dict.fromkeys(SCALARS, _scalar),
    **dict.fromkeys(_SEQUENCES, _sequence),
}


def _takes_none(expected: Any) -> bool:
    return expected in (Any, object) or types.NoneType in typing.get_args(expected)


def init_fields(cls: type) -> Fields:
    """The fields of an attrs class that its constructor takes."""
    return tuple(field for field in attrs.fields(typing.cast("Any", cls)) if field.init)


def option_name(field: attrs.Attribute[Any]) -> str:
    """The key of a field in YAML: its name in the constructor."""
    return field.alias or field.name


def type_name(expected: Any) -> str:
    """A type as it is written in source."""
    if isinstance(expected, str):
        return expected
    if isinstance(expected, type) and not typing.get_args(expected):
        return expected.__name__
    return "Any" if expected is None else inspect.formatannotation(expected)


def field_type(cls: type, field: attrs.Attribute[Any]) -> Any:
    """The type of a field, its annotation resolved by itself. Raises `ConfigError` if it names what does not exist."""
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
    """The full path of every key in a tree of attrs classes, by the key; the outer one counts."""
    paths: dict[str, str] = {}
    for field in init_fields(cls):
        key, expected = option_name(field), field_type(cls, field)
        path = f"{address}.{key}" if address else key
        if isinstance(expected, type) and attrs.has(expected) and not hasattr(expected, "from_plain"):
            paths = key_paths(expected, path) | paths
        paths[key] = path
    return paths
