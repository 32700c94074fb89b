"""The plan: the handlers of every signal in their final order, with the checks of the data that they exchange.

Handlers run by priority; ties are ordered by place in the plugin list, then by place in the class. A nested signal is
delivered when the band that emitted it ends. A pass is fit_start, one step (its iterations taken once), or fit_end.
Along the running order of a pass, the plan refuses to read data before it is made, or to add to it afterwards. It also
refuses data that is read but made by no handler, and data that is made twice. Data made in fit_start is available in
later passes, unless they make it themselves. Adding to data that no handler makes is allowed: no handler can read it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby
from types import MappingProxyType
from typing import Final, TypeAlias

import attrs

from hooktrainer.bus.disabled import NONE_DISABLED, Disabled
from hooktrainer.bus.duplicates import without_duplicates
from hooktrainer.bus.handlers import Handler, PlacedPlugin, handlers_of
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
from hooktrainer.plugin import Plugin, Priority, has_state

PASSES: Final[Mapping[str, tuple[type[Event], ...]]] = {
    "fit_start": (FitStart,),
    "step": (StepStart, IterationStart, IterationEnd, StepEnd),
    "fit_end": (FitEnd,),
}
RESTORED: Final = "run.restored"
"""Made on fit_start by a handler that restores a checkpoint."""
BUILT_IN_MAKERS: Final[Mapping[str, str]] = {
    "metrics.row": "metric_aggregation",
    "replay.policy": "staleness",
    RESTORED: "checkpoint",
    "weights.published": "weight_sync",
}
"""The built-in plugin that makes each key; used in hints only."""
MADE_BY_THE_LOOP: Final[Mapping[type[Event], str]] = {IterationEnd: "iteration.metrics"}


@attrs.frozen(eq=False)
class Visit:
    """A handler at its place in a pass, and the handlers whose signals led to it."""

    handler: Handler
    via: tuple[Handler, ...] = ()

    def may_be_skipped(self, reader: Visit | None = None) -> bool:
        """Return whether a pass may leave the handler out; with `reader`, a pass in which the reader runs.

        A handler is left out because of its own `every`, or because a signal on the way to it is not emitted.
        """
        if self.handler.every:
            return True
        if reader is not None and self.via == reader.via[: len(self.via)]:
            return False
        optional = bool(self.via) and self.handler.event is not WeightsSynced
        return optional or any(handler.every for handler in self.via)

    def __str__(self) -> str:
        if not self.via:
            return str(self.handler)
        path = ", inside ".join(f"{at.event.signal} {at.band.name} of {at.label}" for at in reversed(self.via))
        return f"{str(self.handler)[:-1]}, emitted in {path})"


Makers: TypeAlias = Mapping[str, tuple[int, Visit | None]]
"""For each key, the place in the pass where it is made and the handler that makes it; None for the loop."""


@attrs.frozen(eq=False)
class Plan:
    """For each event class, its handlers in running order."""

    plugins: tuple[PlacedPlugin, ...] = ()
    handlers: Mapping[type[Event], tuple[Handler, ...]] = attrs.field(factory=dict)
    disabled: Disabled = NONE_DISABLED

    @classmethod
    def build(
        cls,
        plugins: Iterable[Plugin | PlacedPlugin],
        *,
        complete: bool = True,
        disabled: Disabled = NONE_DISABLED,
    ) -> Plan:
        """Order and check the handlers of a plugin list. Raises `PlanError` with every fault.

        If the list is not `complete`, a missing plugin may make or emit things, and their absence is no fault.
        Faults name the `disabled` plugins that would provide a missing part.
        """
        placed = tuple(PlacedPlugin.of(plugin, place) for place, plugin in enumerate(plugins))
        read = [handlers_of(plugin) for plugin in placed]
        faults = [fault for one in read for fault in one.faults]
        found = without_duplicates(placed, read, faults)
        handlers = [handler for one in found for handler in one.handlers]
        ordered = sorted(handlers, key=lambda handler: handler.number)  # stable: ties keep the order of the list
        emitted = [event for handler in handlers for event in handler.emits]
        events = dict.fromkeys((*EVENTS, *(handler.event for handler in handlers), *emitted))
        by_event = {event: tuple(handler for handler in ordered if handler.event is event) for event in events}
        plan = cls(placed, MappingProxyType(by_event), disabled)
        faults += [*plan._signal_faults(complete), *plan._sync_faults(), *plan._unsaved_faults()]
        if cycle := plan._find_cycle():
            faults.append(cycle)  # there is no order to walk
        else:
            unmade = {key for one in found for key in one.unmade}
            absent = unmade.__contains__ if complete else lambda _: True
            faults += [fault for name in PASSES for fault in plan._data_faults(name, absent)]
        if faults:
            raise PlanError(faults)
        return plan

    def bands(self, event: type[Event]) -> Iterator[tuple[Priority, tuple[Handler, ...]]]:
        """Yield the handlers of an event, band by band."""
        for band, handlers in groupby(self.handlers.get(event, ()), key=lambda handler: handler.band):
            yield band, tuple(handlers)

    def walk(self, event: type[Event], via: tuple[Handler, ...] = ()) -> Iterator[Visit]:
        """Yield every handler that a signal reaches, nested ones included, in running order."""
        for _, handlers in self.bands(event):
            yield from (Visit(handler, via) for handler in handlers)
            for emitter in handlers:
                for emitted in emitter.emits:
                    yield from self.walk(emitted, (*via, emitter))

    def order_up_to_ties(self) -> Mapping[str, tuple[tuple[int, frozenset[str]], ...]]:
        """Return the order up to ties: for each signal, its priorities with the set of handlers that share each."""
        return {
            event.signal: tuple(
                (number, frozenset(handler.label for handler in handlers))
                for number, handlers in groupby(ordered, key=lambda handler: handler.number)
            )
            for event, ordered in self.handlers.items()
        }

    def require_sync(self) -> None:
        """Raise `PlanError` unless a handler syncs the weights."""
        if not any(WeightsSynced in handler.emits for handler in self.handlers[StepEnd]):
            text = "a run requires exactly one handler that syncs the weights: on step_end, without `every`, with "
            fault = Fault("", f"{text}emits=[WeightsSynced]. Found none.")
            hint = " Add weight_sync to the plugins."
            raise PlanError([self.disabled.lacking(fault, emits=WeightsSynced, otherwise=hint)])

    def _all(self) -> Iterator[Handler]:
        for handlers in self.handlers.values():
            yield from handlers

    def _signal_faults(self, complete: bool) -> Iterator[Fault]:
        names: dict[str, type[Event]] = {}
        emitted = {event for handler in self._all() for event in handler.emits}
        for event, handlers in self.handlers.items():
            if names.setdefault(event.signal, event) is not event:
                yield Fault("", f"two event classes have the signal name '{event.signal}'")
            if complete and event not in EVENTS and event not in emitted:
                for handler in handlers:
                    fault = Fault(handler.owner.address, f"{handler} handles a signal that no handler emits.")
                    yield self.disabled.lacking(fault, emits=event)

    def _sync_faults(self) -> Iterator[Fault]:
        """Check that the weights are synced by one handler only, once in every step."""
        syncing = [handler for handler in self._all() if WeightsSynced in handler.emits]
        for handler in syncing:
            if handler.event is not StepEnd or handler.every:
                text = f"{handler} syncs the weights, but may do so only on step_end and without `every`"
                yield Fault(handler.owner.address, text)
        for handler in syncing[1:]:
            text = f"{handler} syncs the weights, but {syncing[0]} does already. One step, one sync: remove one."
            yield Fault(handler.owner.address, text)

    def _unsaved_faults(self) -> Iterator[Fault]:
        """Check that plugins with state handle a step before the checkpoint of that step is captured."""
        savers = {handler.owner for handler in self.handlers[FitStart] if RESTORED in handler.makes}
        handlers = self.handlers[StepEnd]
        save = max((place for place, handler in enumerate(handlers) if handler.owner in savers), default=len(handlers))
        for handler in handlers[save + 1 :]:
            if has_state(type(handler.owner.plugin)):
                saved = handlers[save]
                text = f"{handler} runs after {saved}, but {handler.owner.name} has state that it could change there"
                lost = "a resume would lose the change"
                remedy = f"Give it a priority below {saved.number}, or {saved.label} one above."
                yield Fault(handler.owner.address, f"{text}; {lost}. {remedy}")

    def _find_cycle(self) -> Fault | None:
        for event in self.handlers:
            if cycle := self._cycle(event, ()):
                path = " -> ".join(f"{handler.label} on {handler.event.signal}" for handler in cycle)
                return Fault(cycle[0].owner.address, f"the signals emit each other in a cycle: {path}")
        return None

    def _cycle(self, event: type[Event], path: tuple[Handler, ...]) -> tuple[Handler, ...]:
        for handler in self.handlers.get(event, ()):
            for emitted in handler.emits:
                if emitted in (event, *(seen.event for seen in path)):
                    return (*path, handler)
                if found := self._cycle(emitted, (*path, handler)):
                    return found
        return ()

    def _data_faults(self, name: str, absent: Callable[[str], bool]) -> Iterator[Fault]:
        makers: dict[str, tuple[int, Visit | None]] = {}
        visits: list[Visit] = []
        for event in PASSES[name]:
            if event in MADE_BY_THE_LOOP:
                makers[MADE_BY_THE_LOOP[event]] = (len(visits), None)
            visits += self.walk(event)
        for place, visit in enumerate(visits):
            for key in visit.handler.makes:
                if key in makers:
                    first = makers[key][1] or "the loop"
                    text = f"'{key}' is made twice in one {name}: by {first} and by {visit}"
                    yield Fault(visit.handler.owner.address, text)
                else:
                    makers[key] = (place, visit)
        for place, visit in enumerate(visits):
            for need in visit.handler.needs:
                key = need.removesuffix("?")
                if key in makers and (wrong := self._order_fault(name, place, visit, need, makers)):
                    yield Fault(visit.handler.owner.address, wrong)
                elif not (key in makers or need.endswith("?") or key in self._made_at_fit_start() or absent(key)):
                    yield self._unmade_fault(name, visit, key)
            for key in visit.handler.adds:
                if late := self._add_fault(name, place, visit, key, makers):
                    yield Fault(visit.handler.owner.address, late)

    def _order_fault(self, name: str, place: int, visit: Visit, need: str, makers: Makers) -> str | None:
        key, optional = need.removesuffix("?"), need.endswith("?")
        made, maker = makers[key]
        if maker is None:
            return f"{visit} reads '{key}' before the loop makes it for iteration_end" if made > place else None
        if maker is visit:
            return f"{visit} needs '{key}', which it makes itself"
        if made > place:
            return f"{visit} reads '{key}' before {maker} makes it. {_way_out(visit, maker)}"
        if maker.may_be_skipped(visit) and not optional:
            return f"{visit} needs '{key}', but {maker} does not make it in every {name}: needs=['{key}?'] and check"
        return None

    def _unmade_fault(self, name: str, visit: Visit, key: str) -> Fault:
        known, address = self._made(), visit.handler.owner.address
        if key in known:
            text = f"{visit} needs '{key}', which no handler makes in {name}. If it may be absent, declare '{key}?'."
            return Fault(address, text)
        maker = BUILT_IN_MAKERS.get(key)
        hint = f" Add {maker} to the plugins." if maker else did_you_mean(key, known | BUILT_IN_MAKERS.keys())
        fault = Fault(address, f"{visit} needs '{key}', which no handler makes.")
        return self.disabled.lacking(fault, makes=key, otherwise=hint)

    def _made(self) -> set[str]:
        return {*MADE_BY_THE_LOOP.values(), *(key for handler in self._all() for key in handler.makes)}

    def _add_fault(self, name: str, place: int, visit: Visit, key: str, makers: Makers) -> str | None:
        if key in makers:
            made, maker = makers[key]
            late = maker is not None and made < place
            return f"{visit} adds to '{key}' after {maker} has made it. Run it in an earlier band." if late else None
        if key in self._made():
            return f"{visit} adds to '{key}', which no handler makes in {name}"
        similar = did_you_mean(key, self._made())
        return f"{visit} adds to '{key}', which no handler makes.{similar}" if similar else None

    def _made_at_fit_start(self) -> set[str]:
        return {key for visit in self.walk(FitStart) if not visit.may_be_skipped() for key in visit.handler.makes}


def _way_out(reader: Visit, maker: Visit) -> str:
    made = maker.handler
    if reader.via or reader.handler.event is not made.event:
        return f"Read it on {made.event.signal} after {made.band.name} {made.number}."
    return f"Give it a priority above {made.number}."
