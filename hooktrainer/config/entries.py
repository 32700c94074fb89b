"""What a configuration names: classes, each with the options for it."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import attrs

from hooktrainer.config.conversion import HINT, convert, read, read_fields, salvaged
from hooktrainer.config.faults import Faults, shown
from hooktrainer.config.fields import init_fields
from hooktrainer.config.scalars import INVALID, Unread
from hooktrainer.config.short_forms import COMPONENTS, Kind, instance_name
from hooktrainer.events import Priority

_RESERVED: Final = ("name", "enabled", "priority")
_BANDS: Final = ", ".join(f"{band.name} {band.value}" for band in Priority)


def _is_name(_instance: object, _attribute: object, value: str) -> None:
    if not re.fullmatch(r"[A-Za-z_][\w-]*", value):  # a number would be a place, a dot the end of the name
        raise ValueError(f"a name is letters, digits, '_' and '-', and starts with no digit; found {value!r}")


@attrs.frozen(kw_only=True)
class Use:
    """A component that the YAML names, and the options for it."""

    use: str
    """Short name, `package.module:Class`, or `file.py:Class` beside the YAML."""
    options: Mapping[str, object] = attrs.field(factory=dict)
    """Every other key."""

    @classmethod
    def from_plain(cls, data: object, faults: Faults) -> Use | Unread:
        """From a name, or a mapping with `use`."""
        use, options = _split(data, faults)
        return use if isinstance(use, Unread) else cls(use=use, options=options)


@attrs.frozen(kw_only=True)
class PluginEntry:
    """One item of the plugin list."""

    use: str
    """Short name, `package.module:Class`, or `file.py:Class` beside the YAML."""
    name: str = attrs.field(validator=_is_name)
    """Name of the instance: in overrides, metrics, faults and checkpoints. Taken from `use` if left out."""
    enabled: bool = True
    """Whether it takes part."""
    priority: Mapping[str, int] = attrs.field(factory=dict, metadata={HINT: f"The bands are {_BANDS}."})
    """Priorities by signal, or by method where the plugin has two handlers on one signal."""
    options: Mapping[str, object] = attrs.field(factory=dict)
    """Every other key."""
    address: str = ""
    """Where it stands in the YAML."""

    @classmethod
    def from_plain(cls, data: object, faults: Faults) -> PluginEntry | Unread:
        """From a name, or a mapping with `use`; a reserved key with a fault has its default, and hides no option."""
        use, options = _split(data, faults)
        if isinstance(use, Unread):
            return use
        head: dict[str, Any] = {key: options.pop(key) for key in _RESERVED if key in options}
        if head.get("name") is None:
            head["name"] = instance_name(use)
        rest: dict[str, Any] = {"use": use, "options": options, "address": faults.address}
        entry = read_fields(cls, init_fields(cls), head | rest, faults, faults.address)
        if isinstance(entry, Unread):
            numbers = {key: number for key, number in _items(head.get("priority")) if type(number) is int}
            return salvaged(cls, entry, name=faults.address, priority=numbers, options=options) or INVALID
        return entry


@attrs.frozen
class Named:
    """All that a configuration names, or as much as could be read of it."""

    components: Mapping[str, Use]
    """By section."""
    plugins: tuple[PluginEntry, ...]
    complete: bool = True
    """Whether every item of the plugin list could be read."""

    @classmethod
    def in_data(cls, data: Mapping[str, Any]) -> Named:
        """In plain data, whatever is wrong with it."""
        plugins = data.get("plugins") or ()
        items = enumerate(plugins if isinstance(plugins, (list, tuple)) else (INVALID,))
        uses = {key: read(Use, data.get(key), Faults()) for key in COMPONENTS}
        entries = [read(PluginEntry, item, Faults(f"plugins[{place}]")) for place, item in items]
        legible = tuple(entry for entry in entries if isinstance(entry, PluginEntry))
        components = {key: use for key, use in uses.items() if isinstance(use, Use)}
        return cls(components, legible, complete=len(legible) == len(entries))

    def classes(self) -> Iterator[tuple[str, Kind, str]]:
        """Of every class its address, its kind and its name."""
        for key, use in self.components.items():
            yield key, COMPONENTS[key], use.use
        for entry in self.plugins:
            yield f"plugins.{entry.name}", "plugins", entry.use


def _split(data: object, faults: Faults) -> tuple[str | Unread, dict[str, Any]]:
    """`use`, and a copy of the other keys."""
    if data is None:
        faults.add("this item is empty; write a name, or a mapping with `use`")
    elif not isinstance(data, Mapping):
        faults.add(f"expected a name or a mapping with `use`, found {shown(data)}")
    elif odd := [key for key in data if not isinstance(key, str)]:
        faults.add(f"the names of options are text, found {', '.join(map(shown, odd))}")
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
        return f"options stand beside `use`, not below the name; write {{use: {use}, {inside}}}"
    if isinstance(data.get("name"), str):
        return f"`name` only names the instance; what it is stands behind `use`, as in {{use: {data['name']}}}"
    return f"`use` is missing, which says what this is; found {', '.join(data) or 'an empty mapping'}"


def _items(value: object) -> list[tuple[Any, Any]]:
    return list(value.items()) if isinstance(value, Mapping) else []
