"""Ports to plugins: what a run offers is bound to the fields that ask for it, by type or by registered name."""

from __future__ import annotations

import typing
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import attrs

from hooktrainer.bus.handlers import Entry
from hooktrainer.errors import ConfigError, Fault, did_you_mean
from hooktrainer.plugin import UNBOUND, port_fields
from hooktrainer.ports import (
    Clock,
    KLControl,
    Learner,
    PromptSource,
    ReplayBuffer,
    RolloutEngine,
    RunState,
    Sink,
    WeightTransport,
)

STANDARD_PORTS: Final = (Learner, RolloutEngine, ReplayBuffer, WeightTransport, PromptSource, Clock, RunState)
"""Types of port that every run offers."""

PORTS_OF_A_CONFIG: Final = (*STANDARD_PORTS, KLControl)
"""Types of port that a run offers that was composed from a configuration."""


@attrs.frozen(kw_only=True)
class Ports:
    """Everything that the loop and its plugins work on."""

    learner: Learner
    engine: RolloutEngine
    buffer: ReplayBuffer
    transport: WeightTransport
    prompts: PromptSource
    clock: Clock
    sinks: Mapping[str, Sink] = attrs.field(factory=dict)
    """By registered name."""
    extra: Mapping[type, object] = attrs.field(factory=dict)
    """Ports of your own, by the type that plugins annotate."""

    def by_type(self) -> Mapping[type, object]:
        """What a typed port can be, but for the state of the run, which the trainer adds."""
        standard = (self.learner, self.engine, self.buffer, self.transport, self.prompts, self.clock)
        return {**dict(zip(STANDARD_PORTS, standard, strict=False)), **self.extra}


def bind(entries: tuple[Entry, ...], ports: Ports, run: RunState | None = None) -> None:
    """Fill every port that is not filled yet. Raises `ConfigError` with all ports for which there is nothing."""
    offered = dict(ports.by_type())
    if run is not None:
        offered[RunState] = run
    faults = [fault for entry in entries for fault in (*_bind_typed(entry, offered), *_bind_named(entry, ports.sinks))]
    if faults:
        raise ConfigError(faults)


def port_faults(entry: Entry, offered: Iterable[type]) -> Iterator[Fault]:
    """What is wrong with the typed ports of a plugin, as far as their types tell."""
    yield from (fault for _, fault in _typed(entry, frozenset(offered)) if fault is not None)


def _bind_typed(entry: Entry, offered: Mapping[type, object]) -> Iterator[Fault]:
    for (field, wanted), fault in _typed(entry, frozenset(offered)):
        if fault is not None:
            yield fault
        elif wanted is not None:
            setattr(entry.plugin, field, offered[wanted])


def _typed(entry: Entry, offered: frozenset[type]) -> Iterator[tuple[tuple[str, type | None], Fault | None]]:
    """Every unbound port with the type that it wants, or with what is wrong with that."""
    cls = type(entry.plugin)
    fields = [field for field in port_fields(cls, named=False) if getattr(entry.plugin, field.name) is UNBOUND]
    try:
        types = typing.get_type_hints(cls) if fields else {}
    except NameError as error:
        text = f"a port of {cls.__name__} has a type that is not imported at run time: {error}"
        yield ("", None), Fault(entry.address, text)
        return
    for field in fields:
        wanted = types.get(field.name)
        if wanted in offered:
            yield (field.name, wanted), None
        else:
            name = getattr(wanted, "__name__", str(wanted))
            known = sorted(kind.__name__ for kind in offered)
            text = f"port '{field.name}' wants a {name}, which this run does not offer; it has {', '.join(known)}."
            yield (field.name, None), Fault(entry.address, text + did_you_mean(name, known))


def _bind_named(entry: Entry, offered: Mapping[str, object]) -> Iterator[Fault]:
    for field in port_fields(type(entry.plugin), named=True):
        wanted = getattr(entry.plugin, field.name)
        names = [item for item in wanted if isinstance(item, str)]
        for name in names:
            if name not in offered:
                text = f"there is no '{name}' here; known are {', '.join(sorted(offered)) or 'none'}."
                yield Fault(f"{entry.address}.{field.name}", text + did_you_mean(name, offered))
        if all(name in offered for name in names):
            bound = tuple(offered[item] if isinstance(item, str) else item for item in wanted)
            setattr(entry.plugin, field.name, bound)
