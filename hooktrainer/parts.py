"""What a configuration names, built and checked without torch: components, plugins and their plan."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from typing import Any, Final

import attrs

from hooktrainer import registry
from hooktrainer.config import Config, PluginEntry, Use
from hooktrainer.errors import ConfigError, PlanError
from hooktrainer.faults import Faults
from hooktrainer.hooks import Entry
from hooktrainer.options import option_paths
from hooktrainer.plan import Plan
from hooktrainer.plugin import Plugin, option_fields, port_fields
from hooktrainer.ports import Sink
from hooktrainer.registry import COMPONENTS, Group
from hooktrainer.schema import convert, field_type, init_fields, key_paths, option_name, read_fields

_GROUP_OF_PORT: Final[Mapping[object, Group]] = {Sink: "sinks"}


@attrs.frozen
class Parts:
    """What the configuration names, built and checked; nothing here imported torch."""

    task: Any
    model: Any
    rollout: Any
    plan: Plan


def build_parts(config: Config) -> Parts:
    """Components, plugins and their plan. Raises `ConfigError` with the faults of all of them."""
    faults = _faults(config)
    entries = _entries(config, faults)
    plan, unordered = Plan(), None
    try:
        plan = Plan.build(entries, complete=not faults)
    except PlanError as error:
        unordered = error
        faults.absorb(error)
    components = {key: _component(group, getattr(config, key), faults.at(key)) for key, group in COMPONENTS.items()}
    parts = Parts(**components, plan=plan)
    if unordered is not None and len(faults) == len(unordered.faults):
        raise unordered
    faults.raise_if_any()
    return parts


def build_entries(config: Config) -> tuple[Entry, ...]:
    """The enabled plugins in the order of the list. Raises `ConfigError` with all faults."""
    faults = _faults(config)
    entries = _entries(config, faults)
    faults.raise_if_any()
    return entries


def _faults(config: Config) -> Faults:
    return Faults(elsewhere=lambda: key_paths(Config) | option_paths(config.named()))


def _component(group: Group, use: Use, faults: Faults) -> Any:
    try:
        cls = registry.resolve(group, use.use)
    except ConfigError as error:
        faults.absorb(error)
        return None
    return read_fields(cls, init_fields(cls), use.options, faults, use.use)


def _entries(config: Config, faults: Faults) -> tuple[Entry, ...]:
    enabled = (entry for entry in config.plugins if entry.enabled)
    built = [_entry(entry, config, attrs.evolve(faults, address=entry.address)) for entry in enabled]
    return tuple(entry for entry in built if entry is not None)


def _entry(entry: PluginEntry, config: Config, faults: Faults) -> Entry | None:
    try:
        cls: type[Plugin] = registry.resolve("plugins", entry.use)
    except ConfigError as error:
        faults.absorb(error)
        return None
    named = {option_name(field): field for field in port_fields(cls, named=True)}
    options = {key: value for key, value in entry.options.items() if key not in named}
    fields = [field for field in option_fields(cls) if option_name(field) not in named]
    ports = {
        key: _port_names(cls, field, entry.options[key], faults.at(key))
        for key, field in named.items()
        if entry.options.get(key) is not None
    }
    plugin = read_fields(cls, fields, options, faults, entry.name)
    if plugin is None:
        return None
    for key, names in ports.items():
        setattr(plugin, named[key].name, names)  # bound to objects once there are any
    for sentence in plugin.check(config):
        faults.add(sentence)
    return Entry(plugin, entry.name, entry.address, entry.priority)


def _port_names(cls: type, field: attrs.Attribute[Any], value: object, faults: Faults) -> tuple[str, ...]:
    names = convert(value, tuple[str, ...], faults)
    if not isinstance(names, tuple):
        return ()
    for place, name in enumerate(names):
        try:
            wanted = next(iter(typing.get_args(field_type(cls, field))), None)
            if wanted in _GROUP_OF_PORT:
                registry.check_name(_GROUP_OF_PORT[wanted], name)
        except ConfigError as error:
            faults.at(place).absorb(error)
        if name in names[:place]:
            faults.at(place).add(f"'{name}' is listed twice")
    return names
