"""What a configuration names, built and checked without torch: components, plugins and their plan."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

import attrs

from hooktrainer.bus.binding import CONFIGURED_PORTS, port_faults
from hooktrainer.bus.handlers import PlacedPlugin
from hooktrainer.bus.plan import RESTORED, Plan
from hooktrainer.config.conversion import convert, read_fields, salvaged
from hooktrainer.config.entries import Named, PluginEntry, Use
from hooktrainer.config.faults import Faults, shown
from hooktrainer.config.fields import field_type, init_fields, key_paths, option_name
from hooktrainer.config.scalars import INVALID, Unread
from hooktrainer.config.sections import SECTIONS, Config
from hooktrainer.config.short_forms import COMPONENTS, Kind
from hooktrainer.errors import ConfigError, PlanError
from hooktrainer.events import FitStart
from hooktrainer.plugin import Plugin, option_fields, port_fields
from hooktrainer.ports import Sink
from hooktrainer.run import registry
from hooktrainer.run.option_docs import option_paths

_KIND_OF_PORT: Final[Mapping[object, Kind]] = {Sink: "sinks"}


@attrs.frozen
class Parts:
    """What the configuration names, built; nothing here imported torch."""

    task: Any
    model: Any
    rollout: Any
    plan: Plan


def build_parts(config: Config) -> Parts:
    """Components, plugins and their plan. Raises `ConfigError` with every fault, as `load_config` does."""
    faults = Faults(elsewhere=lambda: key_paths_of(config.named))
    parts = assemble(config.named, config, faults)
    faults.raise_if_any(SECTIONS)
    return parts


def assemble(named: Named, config: Config | Unread, faults: Faults) -> Parts:
    """Build what is named as far as it goes, and take note of all that is wrong with it or does not fit together."""
    components = {
        key: _component(kind, named.components[key], faults.at(key)) if key in named.components else INVALID
        for key, kind in COMPONENTS.items()
    }
    _check_end(config, components["task"], faults)
    _check_answers(config, components["rollout"], faults)
    enabled = [entry for entry in named.plugins if entry.enabled]
    built = [_entry(entry, config, attrs.evolve(faults, address=entry.address)) for entry in enabled]
    entries = [entry for entry in built if entry is not None]
    faults.found.extend(fault for entry in entries for fault in port_faults(entry, CONFIGURED_PORTS))
    plan = Plan()
    try:
        plan = Plan.build(entries, complete=named.complete and len(entries) == len(built))
    except PlanError as error:
        faults.absorb(error)
    else:
        _check_resume(config, plan, faults)
    return Parts(**components, plan=plan)


def key_paths_of(named: Named) -> Mapping[str, str]:
    """The full path of every key that a configuration can have, by the key."""
    return key_paths(Config) | option_paths(named.classes())


def _component(kind: Kind, use: Use, faults: Faults) -> Any:
    try:
        cls = registry.resolve(kind, use.use)
    except ConfigError as error:
        faults.absorb(error)
        return INVALID
    return read_fields(cls, init_fields(cls), use.options, faults, use.use)


def _check_end(config: Config | Unread, task: Any, faults: Faults) -> None:
    with suppress(AttributeError):  # it could not be read
        if config.trainer.total_steps is None and task.size is None:
            text = "missing, and the task never ends; give trainer.total_steps, or end the data with task.size"
            faults.at("trainer.total_steps").add(f"{text} (the prompts of one epoch) and trainer.total_epochs")


def _check_resume(config: Config | Unread, plan: Plan, faults: Faults) -> None:
    with suppress(AttributeError):  # it could not be read
        restores = any(RESTORED in handler.makes for handler in plan.handlers[FitStart])
        if config.run.resume != "off" and not restores:
            text = f"{shown(str(config.run.resume))}, but no plugin restores anything. Add checkpoint to the plugins."
            faults.at("run.resume").add(text)


def _check_answers(config: Config | Unread, rollout: Any, faults: Faults) -> None:
    with suppress(AttributeError):
        if rollout.n == 1 and config.algorithm.compares_answers:
            text = (
                f"'{config.algorithm.adv_estimator}' compares the answers of a prompt, so that with one every advantage"
            )
            faults.at("rollout.n").add(f"{text} is 0; sample more, or take reinforce_plus_plus or gae")
    with suppress(AttributeError, TypeError):
        buffer, longest = config.algorithm.overlong_buffer, rollout.max_response_length
        if buffer is not None and buffer > longest:
            text = f"a buffer of {buffer} tokens is longer than rollout.max_response_length = {longest}"
            faults.at("algorithm.overlong_buffer").add(text)


def _entry(entry: PluginEntry, config: Config | Unread, faults: Faults) -> PlacedPlugin | None:
    """A plugin in its place, with defaults for options that are at fault; None if it cannot be built at all."""
    try:
        cls: type[Plugin] = registry.resolve("plugins", entry.use)
    except ConfigError as error:
        faults.absorb(error)
        return None
    named = {option_name(field): field for field in port_fields(cls, named=True)}
    options = {key: value for key, value in entry.options.items() if key not in named}
    fields = [field for field in option_fields(cls) if option_name(field) not in named]
    found = read_fields(cls, fields, options, faults, entry.name)
    plugin = found if isinstance(found, Plugin) else salvaged(cls, found)
    for key, field in named.items():
        if entry.options.get(key) is not None:
            names = _port_names(cls, field, entry.options[key], faults.at(key))
            if plugin is not None:
                setattr(plugin, field.name, names)  # bound to objects once there are any
    if plugin is None:
        return None
    if plugin is found and isinstance(config, Config):
        _check(plugin, config, faults)
    return PlacedPlugin(plugin, entry.name, entry.address, entry.priority)


def _check(plugin: Plugin, config: Config, faults: Faults) -> None:
    before = len(faults)
    try:
        said: Any = plugin.check(config)
        for sentence in [said] if isinstance(said, str) else said or ():
            faults.add(sentence if isinstance(sentence, str) else f"check gives sentences, found {shown(sentence)}")
    except (Exception, SystemExit) as error:  # noqa: BLE001 (whatever a plugin raises is a fault with its address)
        if not before:  # otherwise it may come of a fault that is known
            faults.absorb(error)


def _port_names(cls: type, field: attrs.Attribute[Any], value: object, faults: Faults) -> tuple[str, ...]:
    names = convert(value, tuple[str, ...], faults)
    if not isinstance(names, tuple):
        return ()
    for place, name in enumerate(names):
        try:
            wanted = next(iter(typing.get_args(field_type(cls, field))), None)
            if wanted in _KIND_OF_PORT:
                registry.check_name(_KIND_OF_PORT[wanted], name)
        except ConfigError as error:
            faults.at(place).absorb(error)
        if name in names[:place]:
            faults.at(place).add(f"'{name}' is listed twice")
    return names
