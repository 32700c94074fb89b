"""The plan: for each signal its handlers in their final order, checked for what is read, made and added when.

Handlers run by priority; ties by place in the plugin list, then by place in the class. A nested signal is delivered
when the band that emitted it ends. Along that true order, over one pass (fit_start, one step with its iterations taken
once, or fit_end), nothing may be read before it is made, contributed to after it was made, made by nobody or made
twice. What fit_start makes stays made in the later passes unless they have a maker of their own. Contributing to what
nobody makes is allowed: nobody can read it either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby
from types import MappingProxyType
from typing import Final

import attrs

from hooktrainer.bus.handlers import Entry, Slot, handlers_of
from hooktrainer.errors import Fault, PlanError, did_you_mean
from hooktrainer.events import (
    EVENTS,
    Event,
    FitEnd,
    FitStart,
    IterationEnd,
    IterationStart,
    StepEnd,
    StepStart,
    WeightsSynced,
)
from hooktrainer.plugin import Plugin, Priority, keeps_state

PASSES: Final[Mapping[str, tuple[type[Event], ...]]] = {
    "fit_start": (FitStart,),
    "step": (StepStart, IterationStart, IterationEnd, StepEnd),
    "fit_end": (FitEnd,),
}
RESTORED: Final = "run.restored"
"""What a handler of fit_start makes that goes on from a checkpoint."""
BUILT_IN_MAKERS: Final[Mapping[str, str]] = {
    "metrics.row": "metric_aggregation",
    "replay.policy": "staleness",
    RESTORED: "checkpoint",
    "weights.published": "weight_sync",
}
"""Which plugin of those that come along makes what; for hints alone."""
MADE_BY_THE_CORE: Final[Mapping[type[Event], str]] = {IterationEnd: "iteration.metrics"}


@attrs.frozen(eq=False)
class Visit:
    """A handler at its place in a pass, and the handlers through which a nested signal got there."""

    slot: Slot
    via: tuple[Slot, ...] = ()

    def may_be_skipped(self, reader: Visit | None = None) -> bool:
        """Whether the handler need not run in a pass, or in one in which the reader runs.

        It may be skipped by `every`, or on the way to it by a signal that need not be emitted.
        """
        if self.slot.every:
            return True
        if reader is not None and self.via == reader.via[: len(self.via)]:
            return False
        return any(slot.every for slot in self.via) or (bool(self.via) and self.slot.event is not WeightsSynced)

    def __str__(self) -> str:
        if not self.via:
            return str(self.slot)
        path = ", inside ".join(f"{slot.event.signal} {slot.band.name} of {slot.label}" for slot in reversed(self.via))
        return f"{str(self.slot)[:-1]}, emitted in {path})"


@attrs.frozen(eq=False)
class Plan:
    """For each event class, its handlers in running order."""

    entries: tuple[Entry, ...] = ()
    slots: Mapping[type[Event], tuple[Slot, ...]] = attrs.field(factory=dict)

    @classmethod
    def build(cls, plugins: Iterable[Plugin | Entry], *, complete: bool = True) -> Plan:
        """Order and check the handlers of a plugin list. Raises `PlanError` with every fault.

        Unless it is `complete`, what nobody makes or emits is no fault: a missing plugin may.
        """
        entries = tuple(Entry.of(plugin, place) for place, plugin in enumerate(plugins))
        found = [handlers_of(entry) for entry in entries]
        faults = [*_name_faults(entries), *(fault for handlers in found for fault in handlers.faults)]
        slots = [slot for handlers in found for slot in handlers.slots]
        ordered = sorted(slots, key=lambda slot: slot.number)  # stable: ties keep the order of the list
        events = dict.fromkeys((*EVENTS, *(slot.event for slot in slots), *(e for s in slots for e in s.emits)))
        plan = cls(
            entries,
            MappingProxyType({event: tuple(slot for slot in ordered if slot.event is event) for event in events}),
        )
        faults += [*plan._signal_faults(complete), *plan._sync_faults(), *plan._unsaved_faults()]
        if cycle := plan._find_cycle():
            faults.append(cycle)  # no order to walk
        else:
            unmade = {key for handlers in found for key in handlers.unmade}
            absent = unmade.__contains__ if complete else lambda _: True
            faults += [fault for name in PASSES for fault in plan._data_faults(name, absent)]
        if faults:
            raise PlanError(faults)
        return plan

    def bands(self, event: type[Event]) -> Iterator[tuple[Priority, tuple[Slot, ...]]]:
        """The handlers of an event, band by band."""
        for band, slots in groupby(self.slots.get(event, ()), key=lambda slot: slot.band):
            yield band, tuple(slots)

    def walk(self, event: type[Event], via: tuple[Slot, ...] = ()) -> Iterator[Visit]:
        """Every handler that a signal reaches, nested ones included, in true order."""
        for _, slots in self.bands(event):
            yield from (Visit(slot, via) for slot in slots)
            for emitter in slots:
                for emitted in emitter.emits:
                    yield from self.walk(emitted, (*via, emitter))

    def tied(self) -> Mapping[str, tuple[tuple[int, frozenset[str]], ...]]:
        """The order up to ties: for each signal, the handlers that share a priority as a set."""
        return {
            event.signal: tuple(
                (number, frozenset(slot.label for slot in slots))
                for number, slots in groupby(ordered, key=lambda slot: slot.number)
            )
            for event, ordered in self.slots.items()
        }

    def _signal_faults(self, complete: bool) -> list[Fault]:
        names: dict[str, type[Event]] = {}
        faults: list[Fault] = []
        emitted = {event for slots in self.slots.values() for slot in slots for event in slot.emits}
        for event, slots in self.slots.items():
            if names.setdefault(event.signal, event) is not event:
                faults.append(Fault("", f"two event classes have the signal name '{event.signal}'"))
            if complete and event not in EVENTS and event not in emitted:
                faults += [Fault(slot.entry.address, f"{slot} waits for a signal that nobody emits") for slot in slots]
        return faults

    def require_sync(self) -> None:
        """Raise `PlanError` unless somebody syncs the weights."""
        if not any(WeightsSynced in slot.emits for slot in self.slots[StepEnd]):
            raise PlanError(
                "a run needs exactly one handler that syncs the weights: on step_end, without `every`, with "
                "emits=[WeightsSynced]. Found none. Add weight_sync to the plugins."
            )

    def _sync_faults(self) -> Iterator[Fault]:
        """One step, one sync: whoever syncs does so once in every step, alone."""
        syncers = [slot for slots in self.slots.values() for slot in slots if WeightsSynced in slot.emits]
        for slot in syncers:
            if slot.event is not StepEnd or slot.every:
                text = f"{slot} syncs the weights, but may do so only on step_end and without `every`"
                yield Fault(slot.entry.address, text)
        for slot in syncers[1:]:
            text = f"{slot} syncs the weights, but {syncers[0]} does already. One step, one sync: take one of them out."
            yield Fault(slot.entry.address, text)

    def _unsaved_faults(self) -> Iterator[Fault]:
        """Whoever keeps a state is done with a step before it is saved."""
        savers = {slot.entry for slot in self.slots[FitStart] if RESTORED in slot.makes}
        slots = self.slots[StepEnd]
        save = max((place for place, slot in enumerate(slots) if slot.entry in savers), default=len(slots))
        for slot in slots[save + 1 :]:
            if keeps_state(type(slot.entry.plugin)):
                saved = slots[save]
                text = (
                    f"{slot} runs after {saved}, but {slot.entry.name} keeps a state, whose changes there would be lost"
                )
                way_out = f"Give it a priority below {saved.number}, or {saved.label} one above."
                yield Fault(slot.entry.address, f"{text} over a restart. {way_out}")

    def _find_cycle(self) -> Fault | None:
        for event in self.slots:
            if cycle := self._cycle(event, ()):
                path = " -> ".join(f"{slot.label} on {slot.event.signal}" for slot in cycle)
                return Fault(cycle[0].entry.address, f"the signals emit each other without end: {path}")
        return None

    def _cycle(self, event: type[Event], path: tuple[Slot, ...]) -> tuple[Slot, ...]:
        for slot in self.slots.get(event, ()):
            for emitted in slot.emits:
                if emitted in (event, *(seen.event for seen in path)):
                    return (*path, slot)
                if found := self._cycle(emitted, (*path, slot)):
                    return found
        return ()

    def _data_faults(self, name: str, absent: Callable[[str], bool]) -> Iterator[Fault]:
        makers: dict[str, tuple[int, Visit | None]] = {}
        visits: list[Visit] = []
        for event in PASSES[name]:
            if event in MADE_BY_THE_CORE:
                makers[MADE_BY_THE_CORE[event]] = (len(visits), None)
            visits += self.walk(event)
        for place, visit in enumerate(visits):
            for key in visit.slot.makes:
                if key in makers:
                    first = makers[key][1] or "the core"
                    text = f"'{key}' is made twice in one {name}: by {first} and by {visit}"
                    yield Fault(visit.slot.entry.address, text)
                else:
                    makers[key] = (place, visit)
        for place, visit in enumerate(visits):
            for need in visit.slot.needs:
                fault = self._need_fault(name, place, visit, need, makers)
                key = need.removesuffix("?")
                if fault and (key in makers or not absent(key)):
                    yield Fault(visit.slot.entry.address, fault)
            for key in visit.slot.adds:
                if late := self._add_fault(name, place, visit, key, makers):
                    yield Fault(visit.slot.entry.address, late)

    def _need_fault(
        self, name: str, place: int, visit: Visit, need: str, makers: Mapping[str, tuple[int, Visit | None]]
    ) -> str | None:
        key, optional = need.removesuffix("?"), need.endswith("?")
        if key not in makers:
            return None if optional or key in self._made_at_fit_start() else self._unmade_fault(name, visit, key)
        made, maker = makers[key]
        if maker is None:
            return f"{visit} reads '{key}' before the core makes it for iteration_end" if made > place else None
        if maker is visit:
            return f"{visit} needs '{key}', which it makes itself"
        if made > place:
            return f"{visit} reads '{key}' before {maker} makes it. {_way_out(visit, maker)}"
        if maker.may_be_skipped(visit) and not optional:
            return f"{visit} needs '{key}', but {maker} does not make it in every {name}: needs=['{key}?'] and check"
        return None

    def _unmade_fault(self, name: str, visit: Visit, key: str) -> str:
        known = self._made()
        if key in known:
            return f"{visit} needs '{key}', which nobody makes in {name}. Where it may be absent, declare '{key}?'."
        maker = BUILT_IN_MAKERS.get(key)
        hint = f" Add {maker} to the plugins." if maker else did_you_mean(key, known | BUILT_IN_MAKERS.keys())
        return f"{visit} needs '{key}', which nobody makes.{hint}"

    def _made(self) -> set[str]:
        return {made for slots in self.slots.values() for slot in slots for made in slot.makes} | {
            *MADE_BY_THE_CORE.values()
        }

    def _add_fault(
        self, name: str, place: int, visit: Visit, key: str, makers: Mapping[str, tuple[int, Visit | None]]
    ) -> str | None:
        if key in makers:
            made, maker = makers[key]
            late = maker is not None and made < place
            return f"{visit} adds to '{key}' after {maker} has made it. Run it in an earlier band." if late else None
        if key in self._made():
            return f"{visit} adds to '{key}', which nobody makes in {name}"
        meant = did_you_mean(key, self._made())
        return f"{visit} adds to '{key}', which nobody makes.{meant}" if meant else None

    def _made_at_fit_start(self) -> set[str]:
        return {key for visit in self.walk(FitStart) if not visit.may_be_skipped() for key in visit.slot.makes}


def _way_out(reader: Visit, maker: Visit) -> str:
    if reader.via or reader.slot.event is not maker.slot.event:
        return f"Read it on {maker.slot.event.signal} after {maker.slot.band.name} {maker.slot.number}."
    return f"Give it a priority above {maker.slot.number}."


def _name_faults(entries: tuple[Entry, ...]) -> Iterator[Fault]:
    seen: dict[str, Entry] = {}
    for entry in entries:
        first = seen.setdefault(entry.name, entry)
        if first is not entry:
            text = (
                f"{first.address} has the name '{entry.name}' too; every plugin needs a name of its own, "
                f"such as `name: {entry.name}_2`"
            )
            yield Fault(entry.address, text)
