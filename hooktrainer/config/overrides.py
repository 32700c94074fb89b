"""Apply `key=value` overrides to a configuration.

An override addresses a plugin by its instance name (`plugins.staleness.every=2`) or its index (`plugins.0.every=2`,
`plugins[0].every=2`). An override with an unknown address is a fault and is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from hooktrainer.config.entries import instance_name
from hooktrainer.config.faults import Faults, first_line
from hooktrainer.config.short_forms import Expand
from hooktrainer.errors import did_you_mean


def overridden(config: DictConfig, overrides: Iterable[str], expand: Expand, faults: Faults) -> DictConfig:
    """Return the configuration with the overrides applied in order."""
    for override in overrides:
        key, equals, value = override.partition("=")
        here = faults.at(key)
        if not (key and equals):
            here.add("an override is written key=value, such as trainer.total_steps=10")
        elif path := _path(plain(config), re.sub(r"\[(-?\w+)\]", r".\1", key).split("."), here):
            try:
                config.merge_with_dotlist([f"{path}={value}"])
            except yaml.YAMLError:
                here.add(f"'{value}' is not valid YAML")
            except (OmegaConfBaseException, TypeError, ValueError) as error:
                here.add(f"cannot be set to '{value}': {first_line(error)}")
        config = OmegaConf.create(expand(plain(config), Path()))  # an override may contain a short form
    return config


def plain(config: DictConfig) -> dict[str, Any]:
    """Return the data of a configuration, with interpolations as they are written."""
    data = OmegaConf.to_container(config, resolve=False)
    assert isinstance(data, dict)
    return data  # type: ignore[return-value]


def _path(data: Any, parts: list[str], faults: Faults) -> str | None:
    """Return the path with plugin names replaced by indices; None if a list has no such item."""
    path = list(parts)
    for depth, part in enumerate(parts):
        of_plugins = parts[:depth] == ["plugins"]
        if isinstance(data, list) or (of_plugins and data is None):
            items: list[Any] = data or []
            index = _index_of_plugin(items, part, faults) if of_plugins else _index(items, part, faults)
            if index is None:
                return None
            path[depth], data = str(index), items[index]
        else:
            data = data.get(part) if isinstance(data, dict) else None
    return ".".join(path)


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
            f"no plugin has the name '{part}'; there are {', '.join(known) or 'none'}.{did_you_mean(part, known)}"
        )
    return indices[0] if len(indices) == 1 else None


def _name(item: Any) -> str | None:
    """Return the instance name of an item of the plugin list; None for an item that is no mapping."""
    if not isinstance(item, dict):
        return None
    name = item.get("name")
    return name if isinstance(name, str) else instance_name(str(item.get("use")))
