"""Bind ports: assign the components of a run to the port fields of plugins, by their type."""

from __future__ import annotations

import typing
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

import attrs

from hooktrainer.bus.handlers import PlacedPlugin
from hooktrainer.errors import ConfigError, Fault, did_you_mean
from hooktrainer.plugin import UNBOUND, port_fields
from hooktrainer.ports import (
    CheckpointStore,
    Clock,
    KLControl,
    LatestSamples,
    Learner,
    ModelExport,
    PromptSource,
    ReplayBuffer,
    RolloutEngine,
    RunState,
    SampleLog,
    Timeline,
    WeightTransport,
)

STANDARD_PORTS: Final = (
    Learner,
    RolloutEngine,
    ReplayBuffer,
    WeightTransport,
    PromptSource,
    Clock,
    RunState,
    CheckpointStore,
    LatestSamples,
    SampleLog,
    Timeline,
)
"""Port types that every run offers."""

CONFIGURED_PORTS: Final = (*STANDARD_PORTS, KLControl, ModelExport)
"""Port types that a run built from a configuration offers."""


@attrs.frozen(kw_only=True)
class Ports:
    """The components of a run that the loop and its plugins use."""

    learner: Learner
    engine: RolloutEngine
    buffer: ReplayBuffer
    transport: WeightTransport
    prompts: PromptSource
    clock: Clock
    extra: Mapping[type, object] = attrs.field(factory=dict)
    """Further ports, by the type that plugins annotate."""

    def by_type(self) -> Mapping[type, object]:
        """Return the components by port type, without those that the trainer adds."""
        standard = (self.learner, self.engine, self.buffer, self.transport, self.prompts, self.clock)
        return {**dict(zip(STANDARD_PORTS, standard, strict=False)), **self.extra}


def bind(plugins: tuple[PlacedPlugin, ...], ports: Ports, run: Mapping[type, object] = MappingProxyType({})) -> None:
    """Bind every unbound port; `run` holds the ports that the trainer adds, by type.

    Raises `ConfigError` with all ports that the run does not offer.
    """
    offered = {**ports.by_type(), **run}
    faults = [fault for plugin in plugins for fault in (*_bind_typed(plugin, offered), *_named(plugin))]
    if faults:
        raise ConfigError(faults)


def port_faults(placed: PlacedPlugin, offered: Iterable[type]) -> Iterator[Fault]:
    """Yield the faults of a plugin's typed ports that are known from types alone."""
    yield from (fault for _, fault in _typed(placed, frozenset(offered)) if fault is not None)


def _bind_typed(placed: PlacedPlugin, offered: Mapping[type, object]) -> Iterator[Fault]:
    for (field, required), fault in _typed(placed, frozenset(offered)):
        if fault is not None:
            yield fault
        elif required is not None:
            setattr(placed.plugin, field, offered[required])


def _typed(placed: PlacedPlugin, offered: frozenset[type]) -> Iterator[tuple[tuple[str, type | None], Fault | None]]:
    """Yield every unbound port with its type, or with a fault."""
    cls = type(placed.plugin)
    fields = [field for field in port_fields(cls, named=False) if getattr(placed.plugin, field.name) is UNBOUND]
    try:
        types = typing.get_type_hints(cls) if fields else {}
    except NameError as error:
        text = f"a port of {cls.__name__} has a type that is not imported at run time: {error}"
        yield ("", None), Fault(placed.address, text)
        return
    for field in fields:
        required = types.get(field.name)
        if required in offered:
            yield (field.name, required), None
        else:
            name = getattr(required, "__name__", str(required))
            known = sorted(kind.__name__ for kind in offered)
            text = f"port '{field.name}' requires a {name}, which this run does not offer; it has {', '.join(known)}."
            yield (field.name, None), Fault(placed.address, text + did_you_mean(name, known))


def _named(placed: PlacedPlugin) -> Iterator[Fault]:
    """Yield a fault for each named port that holds names, which only a configuration resolves."""
    for field in port_fields(type(placed.plugin), named=True):
        if names := [item for item in getattr(placed.plugin, field.name) if isinstance(item, str)]:
            text = f"{', '.join(map(repr, names))}: only YAML gives names; in Python, pass the objects"
            yield Fault(f"{placed.address}.{field.name}", text)
