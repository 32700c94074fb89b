"""Items of a configuration that name a class and give it options: components and plugins."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from typing import Any, Final

import attrs

from hooktrainer._util.registry import HINT
from hooktrainer.config.conversion import convert, read_fields, salvaged
from hooktrainer.config.faults import Faults, shown
from hooktrainer.config.fields import init_fields
from hooktrainer.config.scalars import INVALID, Unread
from hooktrainer.events import PRIORITY_HINT, snake_case

_RESERVED: Final = ("name", "enabled", "priority")


def _is_name(_instance: object, _attribute: object, value: str) -> None:
    if not re.fullmatch(r"[A-Za-z_][\w-]*", value):  # overrides use digits for an index, and a dot as separator
        raise ValueError(f"a name consists of letters, digits, '_' and '-', and starts with no digit; found {value!r}")


@attrs.frozen(kw_only=True)
class Use:
    """A component that the YAML names, and its options."""

    use: str
    """Short name, `package.module:Class`, or `file.py:Class` relative to the YAML file."""
    options: Mapping[str, object] = attrs.field(factory=dict)
    """Every other key."""

    @classmethod
    def from_plain(cls, data: object, faults: Faults) -> Use | Unread:
        """Convert a mapping with `use`."""
        use, options = _split(data, faults)
        return use if isinstance(use, Unread) else cls(use=use, options=options)


@attrs.frozen(kw_only=True)
class PluginEntry:
    """One item of the plugin list."""

    use: str
    """Short name, `package.module:Class`, or `file.py:Class` relative to the YAML file."""
    name: str = attrs.field(validator=_is_name)
    """Name of the instance in overrides, metrics, faults and checkpoints. Derived from `use` if left out."""
    enabled: bool = True
    """Whether the plugin is part of the run."""
    priority: Mapping[str, int] = attrs.field(factory=dict, metadata={HINT: PRIORITY_HINT})
    """Priorities by signal, or by method where the plugin has two handlers on one signal."""
    options: Mapping[str, object] = attrs.field(factory=dict)
    """Every other key."""
    address: str = ""
    """Address in the YAML."""

    @classmethod
    def from_plain(cls, data: object, faults: Faults) -> PluginEntry | Unread:
        """Convert a mapping with `use`; a faulty reserved key gets its default, so that options are checked too."""
        use, options = _split(data, faults)
        if isinstance(use, Unread):
            return use
        head: dict[str, Any] = {key: options.pop(key) for key in _RESERVED if key in options}
        if head.get("name") is None:
            head["name"] = instance_name(use)
        if isinstance(head["name"], str):
            faults.origins.plugins[faults.address] = head["name"]
        rest: dict[str, Any] = {"use": use, "address": faults.address}
        entry = read_fields(cls, init_fields(cls), head | rest, faults, faults.address)
        if isinstance(entry, Unread):
            numbers = {key: number for key, number in _items(head.get("priority")) if type(number) is int}
            entry = salvaged(cls, entry, name=faults.address, priority=numbers) or INVALID
        with attrs.validators.disabled():  # the options are converted later, by the class that they are for
            return entry if isinstance(entry, Unread) else attrs.evolve(entry, options=options)


def instance_name(use: str) -> str:
    """Return the name of an instance that gives none: the short name, or the class of a longer `use` in snake case."""
    _, colon, cls = use.rpartition(":")
    return snake_case(cls) if colon else use


def _split(data: object, faults: Faults) -> tuple[str | Unread, dict[str, Any]]:
    """Return `use`, and a copy of the other keys."""
    if data is None:
        faults.add("this item is empty; write a name, or a mapping with `use`")
    elif not isinstance(data, Mapping):
        faults.add(f"expected a name or a mapping with `use`, found {shown(data)}")
    elif odd := [key for key in data if not isinstance(key, str)]:
        faults.add(f"names of options must be text, found {', '.join(map(shown, odd))}")
    elif data.get("use") is None:
        faults.add(_without_use(data))
    else:
        options = copy.deepcopy(dict(data))
        return convert(options.pop("use"), str, faults.at("use")), options
    return INVALID, {}


def _without_use(data: Mapping[str, object]) -> str:
    if len(data) == 1 and isinstance(next(iter(data.values())), Mapping):
        (use, options), *_ = data.items()
        inside = ", ".join(f"{key}: {value}" for key, value in _items(options))
        return f"options are written next to `use`, not below the name; write {{use: {use}, {inside}}}"
    use, value = next(iter(data.items()), ("", None))
    if len(data) == 1 and use not in _RESERVED and isinstance(value, str):
        return f"a class is named without a blank after the colon; write '{use}:{value}'"
    if isinstance(data.get("name"), str):
        return f"`name` only names the instance; `use` names its class, as in {{use: {data['name']}}}"
    return f"`use`, the name of the class, is missing; found {', '.join(data) or 'an empty mapping'}"


def _items(value: object) -> list[tuple[Any, Any]]:
    return list(value.items()) if isinstance(value, Mapping) else []
