"""Faults of plugins that appear twice: one object, one name, or a plugin of which a run has only one."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence

from hooktrainer.bus.handlers import Handler, PlacedPlugin, PluginHandlers
from hooktrainer.errors import Fault
from hooktrainer.events import WeightsSynced, snake_case


def without_duplicates(
    plugins: Sequence[PlacedPlugin], found: Sequence[PluginHandlers], faults: list[Fault]
) -> Sequence[PluginHandlers]:
    """Return the handlers of all plugins but those that a run cannot have twice, and add a fault for each duplicate."""
    names = {plugin.name for plugin in plugins}
    kept: list[tuple[PlacedPlugin, PluginHandlers]] = []
    for plugin, handlers in zip(plugins, found, strict=True):
        if text := next(_conflicts(plugin, handlers, kept), None):
            faults.append(Fault(plugin.address, text))
            continue
        if namesake := next((first for first, _ in kept if first.name == plugin.name), None):
            free = _free_name(plugin.name, names)
            names.add(free)
            text = f"{namesake.address} is named '{plugin.name}' too; the names of plugins must differ: `name: {free}`"
            faults.append(Fault(plugin.address, text))
        kept.append((plugin, handlers))
    return [handlers for _, handlers in kept]


def _conflicts(
    plugin: PlacedPlugin, handlers: PluginHandlers, earlier: Sequence[tuple[PlacedPlugin, PluginHandlers]]
) -> Iterator[str]:
    """Yield why a plugin cannot be in a run together with an earlier one."""
    for first, own in earlier:
        place = first.address or f"'{first.name}'"
        if first.plugin is plugin.plugin:
            this = "this" if plugin.address else f"'{plugin.name}'"
            yield f"{this} is the same object as {place}, and its handlers would be called twice. Construct another one"
        elif _related(first, plugin) and (does := next(_done_twice(own.handlers, handlers.handlers), None)):
            kind = snake_case(type(first.plugin).__name__)
            yield f"a run has only one {kind}, and {place} is one: {does}. Remove one of them"


def _related(first: PlacedPlugin, second: PlacedPlugin) -> bool:
    one, other = type(first.plugin), type(second.plugin)
    return any(each is other for each in one.__mro__) or any(each is one for each in other.__mro__)


def _done_twice(first: Sequence[Handler], second: Sequence[Handler]) -> Iterator[str]:
    """Yield what a handler does that a run may do only once, if a handler of `second` does it too."""
    for handler, other in itertools.product(first, second):
        if WeightsSynced in handler.emits and WeightsSynced in other.emits:
            yield f"{handler.label} syncs the weights"
        if handler.event is other.event:
            yield from (f"{handler.label} makes '{key}'" for key in handler.makes if key in other.makes)


def _free_name(name: str, taken: Collection[str]) -> str:
    return next(free for number in itertools.count(2) if (free := f"{name}_{number}") not in taken)
