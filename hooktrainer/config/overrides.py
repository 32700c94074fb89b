"""Apply `key=value` overrides to a configuration.

An override addresses a plugin by its instance name (`plugins.staleness.every=2`) or its index (`plugins.0.every=2`,
`plugins[0].every=2`). The name of a registered plugin that is not in the list adds it. An override with another unknown
address is a fault and is left out. `key+=value` appends to a list.

A mapping is merged with the earlier one, and an empty mapping clears it. A list or a scalar replaces the earlier value.

A value in brackets, braces or quotes is YAML. Any other value is a number, a boolean, null, or the text as it is: `#`,
`&` and `: ` have no meaning.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from hooktrainer._util.registry import registered_in
from hooktrainer.config.entries import instance_name
from hooktrainer.config.faults import Faults, short, shown
from hooktrainer.config.interpolation import escaped
from hooktrainer.config.scalars import INVALID
from hooktrainer.config.short_forms import Expand
from hooktrainer.config.yaml_text import MAX_DEPTH, YamlError, names_of_yaml, read_scalar, read_yaml
from hooktrainer.errors import did_you_mean

_GROUP: Final = "hooktrainer.plugins"
"""Entry points of plugins that an override may add by their names."""


def overridden(data: dict[str, Any], overrides: Iterable[str], expand: Expand, faults: Faults) -> dict[str, Any]:
    """Return the configuration with the overrides applied in order."""
    for override in overrides:
        key, equals, text = override.partition("=")
        key, appends = key.removesuffix("+"), key.endswith("+")
        here, before = faults.at(key), len(faults)
        if not (key and equals):
            here.add("an override is written key=value, such as trainer.total_steps=10")
        elif problem := _problem_of_key(key):
            here.add(problem)
        else:
            parts = re.sub(r"\[(-?\w+)\]", r".\1", key).split(".")
            if name := _plugin_to_add(data, parts):
                _append(data, ["plugins"], {"use": name}, override, faults)
            if path := _path(data, parts, here):
                value = _value(text, here)
                if appends and value is not INVALID:
                    _append(data, path, value, override, here)
                else:
                    faults.origins.overridden(_address(path), value, override)
                if value is not INVALID and not appends:
                    _put(data, path, value, here)
        if len(faults) > before:
            faults.origins.overrides[key] = override
        data = expand(data, Path(escaped(str(Path.cwd()))))  # an override may contain a short form
    return data


def merged(earlier: Any, later: Any) -> Any:
    """Return two values as one: mappings are merged, an empty one clears, and anything else is replaced."""
    if isinstance(earlier, dict) and isinstance(later, dict) and later:
        return earlier | {key: merged(earlier.get(key), value) for key, value in later.items()}
    return later


def _problem_of_key(key: str) -> str | None:
    bare = key.strip().lstrip("-")
    if key.strip() != key:
        return f"an override has no blanks around its '='; write {bare}=..."
    if key.startswith("-"):
        return f"an override has no dashes; write {bare}=..."
    if not key.isprintable():
        return f"the address has an invisible character: {key!a}; write it again"
    return f"an address has at most {MAX_DEPTH} levels" if key.count(".") >= MAX_DEPTH else None


def _value(text: str, faults: Faults) -> Any:
    """Return the value of an override; `INVALID` after a fault."""
    if text.strip() != text:
        faults.add(f"{short(text)} begins or ends with a blank; remove it, or put quotes around it: '\"...\"'")
        return INVALID
    if text[:1] not in tuple("[{\"'"):
        return read_scalar(text)
    try:
        value, lost = read_yaml(text), names_of_yaml(text)
    except YamlError:
        hint = "; inside of [ ] and { }, put an interpolation in quotes" if "${" in text else ""
        faults.add(f"'{text}' is not valid YAML{hint}")
        return INVALID
    if lost is None and re.search(r"(^|\s)#", re.sub(r"\"(\\.|[^\"\\])*\"|'[^']*'", "", text)):
        lost = "#"
    if lost is not None:
        faults.add(f"'{text}' would be cut at '{lost}'; put text with this character in quotes")
        return INVALID
    return value


def _path(data: Any, parts: list[str], faults: Faults) -> list[str | int] | None:
    """Return the path with plugin names replaced by indices; None if a list has no such item."""
    path: list[str | int] = list(parts)
    for depth, part in enumerate(parts):
        of_plugins = parts[:depth] == ["plugins"]
        if isinstance(data, list) or (of_plugins and data is None):
            items: list[Any] = data or []
            index = _index_of_plugin(items, part, faults) if of_plugins else _index(items, part, faults)
            if index is None:
                return None
            path[depth], data = index, items[index]
        else:
            data = data.get(part) if isinstance(data, dict) else None
    return path


def _plugin_to_add(data: dict[str, Any], parts: list[str]) -> str | None:
    """Return the registered plugin that an address names, if the list has neither this name nor this plugin."""
    items = data.get("plugins")
    if parts[0] != "plugins" or len(parts) == 1 or not isinstance(items, (list, type(None))):
        return None
    listed = {_name(item) for item in items or []} | {str(item.get("use")) for item in items or [] if _name(item)}
    return parts[1] if parts[1] not in listed and parts[1] in registered_in(_GROUP) else None


def _append(data: Any, path: list[Any], value: Any, override: str, faults: Faults) -> None:
    """Append a value, or each item of a list, to the list at a path."""
    found = data
    for key in path:
        found = found.get(key) if isinstance(found, dict) else found[key] if isinstance(found, list) else None
    if found is None and path == ["plugins"]:
        found = []
    if not isinstance(found, list):
        instead = "is not in the configuration" if found is None else f"is {shown(found)}"
        faults.add(f"'+=' appends to a list, but {_address(path)} {instead}; write '=' and the whole value")
        return
    items = value if isinstance(value, list) else [value]
    for number, item in enumerate(items, start=len(found)):
        faults.origins.overridden(_address([*path, number]), item, override)
    _put(data, path, [*found, *items], faults)


def _put(data: Any, path: list[Any], value: Any, faults: Faults) -> None:
    """Set the value at a path, with new mappings where there are none."""
    for depth, key in enumerate(path[:-1], start=1):
        inner = {} if isinstance(data, dict) and data.get(key) is None else data[key]
        if not isinstance(inner, (dict, list)):
            faults.add(f"{_address(path[:depth])} is {shown(inner)}, which has no keys; override it as a whole")
            return
        data[key] = inner
        data = inner
    data[path[-1]] = merged(data.get(path[-1]) if isinstance(data, dict) else data[path[-1]], value)


def _address(path: list[Any]) -> str:
    address = Faults()
    for key in path:
        address = address.at(key)
    return address.address


def _index(items: list[Any], part: str, faults: Faults) -> int | None:
    if not part.isdecimal():
        faults.add(f"an item of a list is addressed by its index, found '{part}'")
    elif int(part) >= len(items):
        faults.add(f"there is no item {part}: the list has length {len(items)}, and indices count from 0")
    else:
        return int(part)
    return None


def _index_of_plugin(items: list[Any], part: str, faults: Faults) -> int | None:
    if part.isdecimal():
        return _index(items, part, faults)
    names = [_name(item) for item in items]
    indices = [index for index, name in enumerate(names) if name == part]
    if len(indices) > 1:
        text = f"several plugins have the name '{part}'; give each a `name`, or use one of the indices {indices}"
        faults.add(text)
    elif not indices:
        known = [name for name in names if name]
        faults.add(
            f"no plugin has the name '{part}'; there are {', '.join(known) or 'none'}."
            + (did_you_mean(part, known) or did_you_mean(part, registered_in(_GROUP)))
        )
    return indices[0] if len(indices) == 1 else None


def _name(item: Any) -> str | None:
    """Return the instance name of an item of the plugin list; None for an item that is no mapping."""
    if not isinstance(item, dict):
        return None
    name = item.get("name")
    return name if isinstance(name, str) else instance_name(str(item.get("use")))
