"""Convert plain data to typed attrs objects.

Every fault is collected, with its full address, the value found and the type expected. Two rules hold for all options:
a key without a value means the default, unless the option may be None; a path is made absolute when it is read.

cattrs (26.2) is not used. There, a wrong type hides the faults of validators, and one failed validator hides the next.
Unknown keys get no suggestion, and `off` and 123E4 are not read as YAML users expect.
"""

from __future__ import annotations

import copy
import difflib
import itertools
import math
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import attrs

from hooktrainer._util.registry import BUILDS_A, HINT
from hooktrainer.config.faults import Faults, shown
from hooktrainer.config.fields import (
    Fields,
    annotation_hint,
    default_of,
    field_type,
    init_fields,
    is_named,
    option_name,
    takes_none,
    type_name,
)
from hooktrainer.config.scalars import (
    INVALID,
    SCALARS,
    EnvironmentText,
    Unread,
    choose,
    holds,
    no_value,
    to_bool,
    without_variables,
)
from hooktrainer.config.validation import validate
from hooktrainer.errors import ConfigError

T = TypeVar("T")
_MANY: Final = 10
"""Unknown keys of one mapping that are reported one by one."""


def read(cls: type[T], data: object, faults: Faults) -> T | Unread:
    """Return an object of an attrs class from a mapping; after a fault, an `Unread` with the fields without faults.

    A class can define its own conversion as a class method `from_plain(data, faults)`.
    """
    if isinstance(data, (cls, Unread)):
        return data
    if own := getattr(cls, "from_plain", None):
        return typing.cast("T | Unread", own(data, faults))
    if part := next((field for field in init_fields(cls) if BUILDS_A in field.metadata), None):
        return _read_component(cls, part, data, faults)
    if isinstance(data, str) and is_named(cls):
        data = {"use": data}
    return read_fields(cls, init_fields(cls), {} if data is None else data, faults, faults.address or "the top level")


def _read_component(cls: type[T], part: attrs.Attribute[Any], data: object, faults: Faults) -> T | Unread:
    """Convert a mapping that has the options of `cls`, and of the object in its field `part`, which `use` names."""
    data = {"use": data} if isinstance(data, str) else data
    if not isinstance(data, Mapping) or not isinstance(data.get("use"), str):
        faults.add(f"expected a mapping with `use`, found {shown(data)}")
        return INVALID
    try:
        made: type = part.metadata[BUILDS_A].resolve(data["use"])
    except ConfigError as error:
        faults.at("use").absorb(error)
        return INVALID
    own = {option_name(field) for field in init_fields(cls)} - {option_name(part)}
    theirs = (data.keys() - own - {"use"}) | {option_name(field) for field in init_fields(made)}
    built = read_fields(made, init_fields(made), {key: data[key] for key in data if key in theirs}, faults, data["use"])
    rest = {key: data[key] for key in own if key in data}
    return read_fields(cls, init_fields(cls), {**rest, option_name(part): built}, faults, data["use"])


def read_fields(cls: type[T], fields: Fields, data: object, faults: Faults, owner: str) -> T | Unread:
    """Convert as `read` does, for a class of which only `fields` may be set."""
    if not isinstance(data, Mapping):
        faults.add(f"expected a mapping of options, found {shown(data)}")
        return INVALID
    before = len(faults)
    known = {option_name(field): field for field in fields}
    unknown = [key for key in data if key not in known]
    for key in unknown[:_MANY]:
        faults.unknown(key, known, owner, annotation_hint(cls, key))
    if len(unknown) > _MANY:
        faults.add(f"{len(unknown) - _MANY} more unknown keys, the last of them {shown(unknown[-1])}")
    found = {name: _read_field(cls, field, data, faults.at(name)) for name, field in known.items()}
    given = {name: value for name, value in found.items() if value is not attrs.NOTHING}
    unread = len(faults) > before or any(isinstance(value, Unread) for value in given.values())
    made, error = (None, None) if unread else _construct(cls, given)
    seen = _readable_fields(known, given, unknown)
    for name in [name for name in given if hasattr(seen, known[name].name)]:
        count = len(faults)
        validate(seen if made is None else made, known[name], faults.at(name))
        if len(faults) > count:
            delattr(seen, known[name].name)
    if error is not None and len(faults) == before:  # otherwise the faults may have caused it
        faults.absorb(error)
    return seen if made is None or len(faults) > before else made


def salvaged(cls: type[T], unread: Unread, **otherwise: object) -> T | None:
    """Return an object of the fields without faults, or else of defaults, so that later checks can run on it."""
    fields = {option_name(field): field for field in init_fields(cls)}
    readable = {name: getattr(unread, field.name, INVALID) for name, field in fields.items()}
    values = {**otherwise, **{name: value for name, value in readable.items() if not isinstance(value, Unread)}}
    required = {name: value for name, value in values.items() if fields[name].default is attrs.NOTHING}
    made, error = _construct(cls, values)
    return made if error is None else _construct(cls, required)[0]


def _read_field(cls: type, field: attrs.Attribute[Any], data: Mapping[str, object], faults: Faults) -> Any:
    """Return the value of a field; `attrs.NOTHING` if it is left out."""
    name = option_name(field)
    value, expected = data.get(name), Any
    if name in data:
        try:
            expected = field_type(cls, field)
        except ConfigError as error:
            faults.absorb(error)
            return INVALID
    if value is None and not (name in data and takes_none(expected)):
        if field.default is not attrs.NOTHING:
            return attrs.NOTHING
        faults.add(f"missing; a value is required ({type_name(field.type)})")
        return INVALID
    if isinstance(value, float) and math.isinf(value) and field.default == value:
        return value  # infinity is valid only where it is the default
    trial = faults.trial()
    converted = convert(value, expected, trial)
    hint = field.metadata.get(HINT)
    hint = hint() if callable(hint) and trial.found else hint
    for fault in trial.found:
        faults.found.append(attrs.evolve(fault, message=f"{fault.message.rstrip('.')}. {hint}") if hint else fault)
    faults.absorbed.extend(trial.absorbed)
    return converted


def _construct(cls: type[T], values: Mapping[str, object]) -> tuple[T | None, BaseException | None]:
    try:
        with attrs.validators.disabled():  # they run one by one later, so that each adds its own fault
            return cls(**values), None
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 (any error of a constructor is a fault of its options)
        return None, error


def _readable_fields(
    known: Mapping[str, attrs.Attribute[Any]], given: Mapping[str, object], unknown: Iterable[object]
) -> Unread:
    """Return the fields without faults, and the defaults of those left out, unless their key was misspelt."""
    misspelt = {name for key in unknown for name in difflib.get_close_matches(str(key), known)}
    left_out = {name: default_of(field) for name, field in known.items() if name not in given and name not in misspelt}
    seen = {known[name].name: value for name, value in {**left_out, **given}.items() if value is not INVALID}
    return Unread(**{name: value for name, value in seen.items() if value is not attrs.NOTHING})


def convert(value: Any, expected: Any, faults: Faults) -> Any:
    """Return `value` as the type `expected`, with copies of its containers; `Unread` after a fault."""
    if isinstance(value, Unread):
        return value
    origin = typing.get_origin(expected) or expected
    if origin is typing.Annotated:
        return convert(value, typing.get_args(expected)[0], faults)
    reader = _READERS.get(origin, _class)
    return reader(value, expected, faults)


def _anything(value: Any, expected: Any, faults: Faults) -> Any:  # noqa: ARG001 (one signature for all readers)
    return INVALID if holds(value, Unread) else copy.deepcopy(without_variables(value))


def _scalar(value: Any, expected: Any, faults: Faults) -> Any:
    choices = typing.get_args(expected)
    converted, ending = choose(value, choices) if choices else SCALARS[expected](value)
    ending = _NO_VALUE if no_value(value) else ending
    if converted is INVALID:
        faults.add(f"expected {' or '.join(map(str, choices)) or type_name(expected)}, found {shown(value)}{ending}")
    return converted


def _union(value: Any, expected: Any, faults: Faults) -> Any:
    arms = [arm for arm in typing.get_args(expected) if arm is not types.NoneType]
    if isinstance(value, EnvironmentText) and value in {"null", "~"}:
        value = None
    if value is None and len(arms) < len(typing.get_args(expected)):
        return None
    if len(arms) == 1:
        return convert(value, arms[0], faults)
    ending = ""
    for arm in sorted(arms, key=lambda arm: arm is not type(value)):  # 5 stays an integer in `float | int`
        trial = faults.trial()
        converted = convert(value, arm, trial)
        if not trial.found:
            return converted
        if arm is Path:  # text that no other arm accepts
            ending = trial.found[0].message.partition(shown(value))[2]
    ending = _NO_VALUE if no_value(value) else ending
    faults.add(f"expected {type_name(expected)}, found {shown(value)}{ending}")
    return INVALID


def _sequence(value: Any, expected: Any, faults: Faults) -> Any:
    arms, make = typing.get_args(expected) or (Any,), _SEQUENCES[typing.get_origin(expected) or expected]
    if not isinstance(value, (list, tuple, set, frozenset)):
        faults.add(f"expected a list, found {shown(value)}{_as_list(value)}")
        return INVALID
    if make is tuple and typing.get_args(expected) and arms[-1] is not Ellipsis:
        if len(arms) != len(value):
            faults.add(f"expected {len(arms)} values, found {len(value)}")
            return INVALID
    else:
        arms = (arms[0],) * len(value)
    items = [convert(*pair, faults.at(index)) for index, pair in enumerate(zip(value, arms, strict=True))]
    return Unread(items=items) if any(isinstance(item, Unread) for item in items) else make(items)


def _as_list(value: Any) -> str:
    """Return how to write one value as a list; words for nothing mean an empty one."""
    if no_value(value) or value is False or to_bool(value)[0] is False:
        return "; write [] for an empty list"
    return f"; write [{value}]" if isinstance(value, (str, int, float)) and value is not True else ""


def _mapping(value: Any, expected: Any, faults: Faults) -> Any:
    if not isinstance(value, Mapping):
        faults.add(f"expected a mapping, found {shown(value)}")
        return INVALID
    of_keys, of_items = typing.get_args(expected) or (Any, Any)
    keys = [convert(key, of_keys, faults.at(str(key))) for key in value]
    items = [_item(key, item, of_items, faults) for key, item in value.items()]
    wrong = any(isinstance(found, Unread) for found in itertools.chain(keys, items))
    return INVALID if wrong else dict(zip(keys, items, strict=True))


def _item(key: Any, value: Any, expected: Any, faults: Faults) -> Any:
    if expected not in SCALARS or not isinstance(value, Mapping):
        return convert(value, expected, faults.at(str(key)))
    path, leaf = [key], typing.cast("Any", value)
    while isinstance(leaf, Mapping) and len(leaf) == 1:
        (last, leaf), *_ = leaf.items()
        path.append(last)
    dotted = ".".join(map(str, path))
    remedy = f"; a dot in an override separates levels, so write {faults.address}={{{dotted}: {leaf}}}"
    faults.at(str(key)).add(f"expected {type_name(expected)}, found {shown(value)}{remedy}")
    return INVALID


def _class(value: Any, expected: Any, faults: Faults) -> Any:
    origin = typing.get_origin(expected) or expected
    if isinstance(origin, type) and attrs.has(origin):
        return read(origin, value, faults)
    if isinstance(origin, type) and isinstance(value, origin):
        return value
    faults.add(f"an option of type {type_name(expected)} cannot be set from YAML")
    return INVALID


_NO_VALUE: Final = "; for no value, write null without quotes"
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
