"""`key=value` overrides over a configuration.

An override finds a plugin by its instance name (`plugins.staleness.every=2`) or by its place (`plugins.0.every=2`,
`plugins[0].every=2`). One that leads nowhere is a fault, and left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from hooktrainer.config.faults import Faults, first_line
from hooktrainer.config.short_forms import name_of, spelled_out
from hooktrainer.errors import did_you_mean


def overridden(config: DictConfig, overrides: Iterable[str], faults: Faults) -> DictConfig:
    """The configuration with overrides on top, in their order."""
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
        config = OmegaConf.create(spelled_out(plain(config), Path()))  # an override may bring in a short form
    return config


def plain(config: DictConfig) -> dict[str, Any]:
    """The data in a configuration, interpolations as they are written."""
    data = OmegaConf.to_container(config, resolve=False)
    assert isinstance(data, dict)
    return data  # type: ignore[return-value]


def _path(data: Any, parts: list[str], faults: Faults) -> str | None:
    """The path with plugin names turned into places; None if a list has no such item."""
    places = list(parts)
    for depth, part in enumerate(parts):
        of_plugins = parts[:depth] == ["plugins"]
        if isinstance(data, list) or (of_plugins and data is None):
            items: list[Any] = data or []
            place = _place_of_plugin(items, part, faults) if of_plugins else _place(items, part, faults)
            if place is None:
                return None
            places[depth], data = str(place), items[place]
        else:
            data = data.get(part) if isinstance(data, dict) else None
    return ".".join(places)


def _place(items: list[Any], part: str, faults: Faults) -> int | None:
    if not part.isdecimal():
        faults.add(f"an item of a list is named by its place, found '{part}'")
    elif int(part) >= len(items):
        faults.add(f"there is no item {part}: the list has length {len(items)}, and places count from 0")
    else:
        return int(part)
    return None


def _place_of_plugin(items: list[Any], part: str, faults: Faults) -> int | None:
    if part.isdecimal():
        return _place(items, part, faults)
    names = [name_of(item) for item in items]
    places = [place for place, name in enumerate(names) if name == part]
    if len(places) > 1:
        faults.add(f"several plugins have the name '{part}'; give each a `name`, or say which by its place: {places}")
    elif not places:
        known = [name for name in names if name]
        faults.add(
            f"no plugin has the name '{part}'; there are {', '.join(known) or 'none'}.{did_you_mean(part, known)}"
        )
    return places[0] if len(places) == 1 else None
