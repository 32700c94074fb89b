"""The fake bus: the real bus, with a stand-in for each maker that a test leaves out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeAlias, TypeVar

import attrs

from hooktrainer.bus import Bus
from hooktrainer.bus.control import ROW
from hooktrainer.bus.handlers import PlacedPlugin, handlers_of
from hooktrainer.bus.plan import MADE_BY_THE_LOOP, Plan
from hooktrainer.errors import ConfigError, PlanError, SyncError, did_you_mean
from hooktrainer.events import EVENTS, Control, Event, FitEnd, FitStart, StepEnd, StepEvent, WeightsSynced
from hooktrainer.metrics import Record, Row, Value, joined
from hooktrainer.plugin import Plugin, Priority, on

E = TypeVar("E", bound=Event)
Place: TypeAlias = tuple[type[Event], int]

STANDARD: Final[Mapping[str, tuple[Place, ...]]] = {
    ROW: ((StepEnd, Priority.REDUCE), (FitEnd, Priority.REDUCE)),
    "replay.policy": ((FitStart, Priority.PREPARE),),
    "weights.published": ((FitStart, Priority.SYNC), (StepEnd, Priority.SYNC)),
}
"""Places of the built-in makers."""


class FakeBus:
    """Plugins on the real bus without a trainer. The plan is validated as in a run. Raises `PlanError`.

    `provides` lists the data and events of plugins that the test leaves out: names of built-in data, or classes of
    events. A mapping gives the place of any other data: `{"judge.scores": (StepEnd, Priority.COLLECT)}`.
    A stand-in makes them. If no plugin emits `weights_synced`, a stand-in emits it in step_end.

    Pass fakes to the ports of the plugins.
    """

    def __init__(
        self, *plugins: Plugin | PlacedPlugin, provides: Iterable[str | type[Event]] | Mapping[str, Place | None] = ()
    ) -> None:
        _refuse_misuse(plugins, provides)
        self._given: Mapping[str, Value] | None = None
        self.record = Record(0)
        """The record of the step fired last."""
        entries = [PlacedPlugin.of(plugin, place) for place, plugin in enumerate(plugins)]
        self.bus = _RecordingBus(_planned([*self._stand_ins(entries, provides), *entries]))
        self.bus.guard(WeightsSynced, _check_version)

    @property
    def plan(self) -> Plan:
        """Return the plan, including stand-ins."""
        return self.bus.plan

    @property
    def control(self) -> Control:
        """Return the control of the run; `control.reason` is set if a plugin stopped the run."""
        return self.bus.control

    @property
    def emitted(self) -> tuple[Event, ...]:
        """Return the events that handlers emitted during the last `fire`, in order."""
        return tuple(self.bus.queued)

    @property
    def row(self) -> Row:
        """Return the sealed row of the step fired last."""
        return self.record.row

    def fire(self, event: type[E], *, row: Mapping[str, Value] | None = None, **fields: Any) -> E:
        """Send an event and return it. Fields that are left out get defaults; `row` is sealed by the stand-in.

        Events of one step share a record until its row is sealed. `fit_end` gets the record of the last step if that
        is not sealed, or a new one if `row` is given.
        """
        _refuse_no_class(event)
        known = [field.name for field in attrs.fields(event) if field.name not in ("control", "record")]
        for name in fields:
            if name not in known:
                raise TypeError(f"{event.__name__} has no field '{name}'.{did_you_mean(name, known)}")
        if "metrics" in fields:
            fields["metrics"] = joined(fields["metrics"])
        defaults = {name: value for name, value in self._defaults(event, fields).items() if name in known}
        filled = event(**defaults, **fields)
        self._given = row
        self.bus.queued.clear()
        try:
            self.bus.emit(filled, self._record_for(filled))
        except KeyError as error:
            error.add_note(f"a handler read a key that the test does not set: fire({event.__name__}, {_giving(event)})")
            raise
        return filled

    def _defaults(self, event: type[Event], fields: Mapping[str, Any]) -> dict[str, Any]:
        step = fields.get("step", self.record.step or 1)
        published = step if issubclass(event, (WeightsSynced, FitEnd)) else step - 1
        known = {
            "step": step,
            "version": published,
            "iteration": 0,
            "iterations": 1,
            "samples": 1,
            "status": "completed",
        }
        return {name: value for name, value in known.items() if name not in fields}

    def _record_for(self, event: Event) -> Record | None:
        if isinstance(event, StepEvent):
            fresh = self.record.sealed and not isinstance(event, WeightsSynced)
            if fresh or event.step != self.record.step:
                self.record = Record(event.step)
            return self.record
        if isinstance(event, FitEnd):
            if self._given is not None:
                self.record = Record(event.step)
            return None if self.record.sealed or self.record.step != event.step else self.record
        return None

    def _stand_ins(
        self, entries: list[PlacedPlugin], provides: Iterable[str | type[Event]] | Mapping[str, Place | None]
    ) -> list[PlacedPlugin]:
        named: dict[Any, Place | None] = dict(provides) if isinstance(provides, Mapping) else dict.fromkeys(provides)
        sent: list[type[Event]] = [key for key in named if isinstance(key, type)]
        if not any(WeightsSynced in handler.emits for entry in entries for handler in handlers_of(entry).handlers):
            sent.append(WeightsSynced)
        places = {
            key: STANDARD.get(key, ()) if place is None else (place,) for key, place in named.items() if key not in sent
        }
        if unknown := [key for key, found in places.items() if not found and key not in MADE_BY_THE_LOOP.values()]:
            raise ConfigError(
                f"provides {', '.join(unknown)}: no built-in plugin makes that; add the place where it is made, "
                f'provides={{"{unknown[0]}": (StepEnd, Priority.COLLECT)}}.{did_you_mean(unknown[0], STANDARD)}'
            )
        makers = [_stand_in(key, [(*place, self._action(key)) for place in found]) for key, found in places.items()]
        return makers + [
            _stand_in(
                event.signal, [(StepEnd, Priority.SYNC, _sync if event is WeightsSynced else _nothing)], emits=[event]
            )
            for event in sent
        ]

    def _action(self, key: str) -> Callable[[Any], None]:
        return self._seal if key == ROW else _nothing

    def _seal(self, event: Any) -> None:
        if event.record is not None and not event.record.sealed:
            given = self._given or {}
            event.record.seal(lambda _: given)


def _refuse_misuse(plugins: Iterable[object], provides: object) -> None:
    for plugin in plugins:
        if isinstance(plugin, type):
            name = plugin.__name__
            raise TypeError(f"FakeBus takes plugins, not their classes: FakeBus({name}(...)), found {name}")
        if not isinstance(plugin, (Plugin, PlacedPlugin)):
            raise TypeError(f"FakeBus takes plugins, found {plugin!r}, which is no hooktrainer.Plugin")
    if isinstance(provides, (str, type)):
        shown = provides.__name__ if isinstance(provides, type) else repr(provides)
        raise TypeError(f"provides={shown}: expected a list, provides=[{shown}]")


def _refuse_no_class(event: object) -> None:
    if not (isinstance(event, type) and issubclass(event, Event)):
        classes = {known.signal: known.__name__ for known in EVENTS}
        name = classes.get(str(event)) or (type(event).__name__ if isinstance(event, Event) else "StepEnd")
        raise TypeError(f"fire takes an event class and its fields, as in fire({name}, ...); found {event!r}")


def _planned(entries: list[PlacedPlugin]) -> Plan:
    try:
        return Plan.build(entries)
    except PlanError as error:
        lacking = [key for key in STANDARD if f"needs '{key}', which no handler makes" in str(error)]
        if lacking:
            named = ", ".join(f'"{key}"' for key in lacking)
            error.add_note(f"in a test, add a stand-in for the plugin that makes it: provides=[{named}]")
        raise


def _giving(event: type[Event]) -> str:
    fields = {field.name for field in attrs.fields(event)}
    return 'metrics={"...": 1.0}' if "metrics" in fields else 'row={"...": 1.0}'


class _RecordingBus(Bus):
    """The real bus, which also records the events that handlers emit."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.queued: list[Event] = []

    def queue(self, event: Event) -> None:
        super().queue(event)
        self.queued.append(event)


def _check_version(event: WeightsSynced) -> None:
    if event.version != event.step:
        raise SyncError(f"weights_synced has step {event.step} but version {event.version}; step k publishes version k")


def _sync(event: StepEnd) -> None:
    event.control.emit(WeightsSynced(step=event.step, version=event.step, last=event.last))


def _nothing(_: Event) -> None:
    """Do nothing; a stand-in whose effect is not needed."""


def _stand_in(
    key: str, places: Iterable[tuple[type[Event], int, Callable[[Any], None]]], emits: Iterable[type[Event]] = ()
) -> PlacedPlugin:
    """Return a plugin at the places of the maker of `key`."""
    makes = [] if emits else [key]
    handlers = {
        event.signal: on(event, priority=priority, makes=makes, emits=list(emits))(_method(action))
        for event, priority, action in places
    }
    plugin = attrs.define(type("StandIn", (Plugin,), handlers))()
    return PlacedPlugin(plugin, f"<stand-in for {key}>", f"provides[{key}]")


def _method(action: Callable[[Any], None]) -> Callable[[Any, Any], None]:
    def handle(_self: Any, event: Any) -> None:
        action(event)

    return handle
