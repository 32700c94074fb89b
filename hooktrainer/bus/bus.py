"""The bus: sends events along the frozen plan, over blinker signals in a namespace of its own.

Emitting is synchronous. A signal that a handler emits is delivered when the handler's band ends, never inside another
handler. An exception stops delivery, except on `fit_end`, which reaches everyone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import AbstractContextManager
from time import perf_counter
from typing import Any, Literal, NoReturn

import blinker

from hooktrainer._util.signals import Aborted, Interrupts
from hooktrainer.bus.control import BusControl, BusRecord
from hooktrainer.bus.handlers import Entry, Slot
from hooktrainer.bus.plan import Plan
from hooktrainer.bus.timing import Handler, HookTimes, Receiver
from hooktrainer.errors import BusError, carry
from hooktrainer.events import Event, FitEnd, Priority, StepEvent
from hooktrainer.metrics.record import Record
from hooktrainer.plugin import Plugin


class Band:
    """The handlers of one band of a signal, and the context that they run in."""

    def __init__(self, priority: Priority, slots: Sequence[Slot]) -> None:
        self.priority = priority
        self.handlers = tuple(map(Handler, slots))
        self.emits = any(slot.emits for slot in slots)
        self.context: Callable[[], AbstractContextManager[object]] | None = None


class PlannedSignal(blinker.NamedSignal):
    """A blinker signal whose receivers are the plan's, in the plan's order, held strongly and for good."""

    def __init__(self, bus: Bus, event: type[Event]) -> None:
        super().__init__(event.signal, event.__doc__)
        self._bus = bus
        self.bands = tuple(Band(priority, slots) for priority, slots in bus.plan.bands(event))
        self.handlers = tuple(handler for band in self.bands for handler in band.handlers)
        self._closes = issubclass(event, FitEnd)
        for handler in self.handlers:
            super().connect(handler.call, weak=False)

    def connect(self, *_: object, **__: object) -> NoReturn:
        """Refuse: a composed plan is frozen."""
        raise BusError(f"nothing can be connected to '{self.name}': the plan is frozen. Write a plugin with a handler.")

    def disconnect(self, *_: object, **__: object) -> NoReturn:
        """Refuse: a composed plan is frozen."""
        raise BusError(f"nothing can be disconnected from '{self.name}': the plan is frozen")

    def receivers_for(self, sender: Any) -> Generator[Receiver, None, None]:
        """The handlers that a send would call, in running order."""
        for handler in self.handlers:
            if not isinstance(sender, Event) or handler.due(sender):
                yield handler.call

    def send(self, sender: Any = None, /, **_: Any) -> list[tuple[Receiver, Any]]:
        """Call the handlers of an event in order, each timed; nested signals when the band that emitted them ends.

        Returns an empty list, since handlers return nothing. Raises what a handler raises, with a note that names it.
        From fit_end on everyone is called all the same; then the first error is raised, with the others noted on it.
        """
        if self.is_muted:
            return []
        bus = self._bus
        failures: list[BaseException] = []
        bus.closing = bus.closing or self._closes
        try:
            for band in self.bands:
                if band.context is None or not any(handler.due(sender) for handler in band.handlers):
                    failures += self._call(band, sender)
                else:
                    with band.context():
                        failures += self._call(band, sender)
        finally:
            bus.running = None  # an interrupt can come between two handlers
        if failures:
            raise _first(failures)
        return []

    def _call(self, band: Band, event: Any) -> list[BaseException]:
        """Call the handlers of a band and deliver the signals that they emitted; return the errors once closing."""
        bus, interrupts = self._bus, self._bus.interrupts
        failures: list[BaseException] = []
        started = perf_counter()
        for handler in band.handlers:
            if handler.every is not None and not handler.due(event):
                continue
            if interrupts.number is not None:
                interrupts.check()
            bus.running = handler
            try:
                handler.call(event)
            except BaseException as error:
                _blame(error, handler, event, interrupts)
                if not bus.closing or isinstance(error, Aborted):
                    raise
                failures.append(error)
            ended = perf_counter()
            handler.calls += 1
            handler.seconds += (taken := ended - started)
            if taken > handler.longest:  # noqa: PLR1730 (max() costs more than the rest of this)
                handler.longest = taken
            started = ended
        bus.running = None
        if band.emits:
            failures += bus.deliver(band.handlers, event)
        return failures


def _first(failures: list[BaseException]) -> BaseException:
    for another in failures[1:]:
        carry(failures[0], another, "in the same signal")
    return failures[0]


def _blame(error: BaseException, handler: Handler, event: Any, interrupts: Interrupts) -> None:
    interrupts.note(error)
    slot = handler.slot
    step = f", step {event.step}" if hasattr(event, "step") else ""
    where = f" ({slot.entry.address})" if slot.entry.address else ""
    error.add_note(
        f"raised by plugin '{slot.entry.name}'{where}: {type(slot.entry.plugin).__name__}.{slot.method} "
        f"on {slot.event.signal}, {slot.band.name} {slot.number}{step}"
    )


class Bus:
    """Plugins in their places. Composed once; then only `emit` is left to do."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.control = BusControl(self)
        self.running: Handler | None = None
        """The handler being called; None between handlers."""
        self.closing = False
        """Whether fit_end was sent: from then on an error keeps nobody from being called."""
        self.interrupts = Interrupts()
        """What ends the run between two handlers."""
        self._namespace = blinker.Namespace()
        self._signals = {event: PlannedSignal(self, event) for event in plan.slots}
        self._namespace.update({signal.name: signal for signal in self._signals.values()})
        self._guards: dict[type[Event], Callable[[Any], None]] = {}
        self._outbox: list[Event] = []
        self._record: BusRecord | None = None
        self._thread: int | None = None
        self.times = HookTimes([handler for signal in self._signals.values() for handler in signal.handlers])

    @classmethod
    def compose(cls, plugins: Iterable[Plugin | Entry]) -> Bus:
        """Order and check the plugins. Raises `PlanError` with every fault."""
        return cls(Plan.build(plugins))

    def signal(self, event: type[Event] | str) -> blinker.NamedSignal:
        """The blinker signal of an event, for `muted` and to look at; it takes no connections."""
        return self._namespace[event if isinstance(event, str) else event.signal]

    def guard(self, event: type[Event], check: Callable[[Any], None]) -> None:
        """Call `check` the moment this event is emitted, and hold every handler that declares it to emitting it."""
        self._guards[event] = check

    def around(
        self, event: type[Event], priority: Priority, context: Callable[[], AbstractContextManager[object]]
    ) -> None:
        """Run a band of a signal, with the signals that it emits, inside a new `context()` each time.

        The context is not entered when the band has no handler to call.
        """
        for band in self._signals[event].bands:
            if band.priority is priority:
                band.context = context

    def emit(self, event: Event, record: Record | None = None) -> None:
        """Send an event; returns when all its handlers, nested ones included, have run."""
        self.check_thread()
        if self.running is not None:
            raise BusError(f"{self.running.slot} used the bus itself; use event.control.emit and declare it in emits")
        self.interrupts.check()
        self._outbox.clear()  # what a failed handler left behind
        self._record = None
        self._record = None if record is None else BusRecord(record, self)
        self._send(event)

    def queue(self, event: Event) -> None:
        """Keep a signal that the running handler declared, until its band ends."""
        self.check_thread()
        kind = type(event)
        handler = self.running
        if handler is None or kind not in handler.slot.emits:
            who = handler.slot if handler else "nobody's handler"
            raise BusError(f"{who} emitted {kind.signal} without declaring it: @on(..., emits=[{kind.__name__}])")
        if kind in self._guards:
            self._guards[kind](event)
        self._outbox.append(event)

    def deliver(self, band: Sequence[Handler], cause: Event) -> list[BaseException]:
        """Send what a band emitted, in the order in which it declares it; returns the errors, if the run is closing.

        A guarded signal that was declared and not emitted is an error.
        """
        posted, self._outbox = self._outbox, []
        declared = [kind for handler in band for kind in handler.slot.emits]
        failures: list[BaseException] = []
        try:
            self._check_owed(band, cause, {type(event) for event in posted})
            for event in sorted(posted, key=lambda event: declared.index(type(event))):
                self._send(event)
        except BaseException as error:
            if not self.closing or isinstance(error, Aborted):
                raise
            failures.append(error)
        return failures

    def _check_owed(self, band: Sequence[Handler], cause: Event, sent: set[type[Event]]) -> None:
        for handler in band:
            for kind in handler.slot.emits:
                if kind in self._guards and kind not in sent and handler.due(cause):
                    raise BusError(f"{handler.slot} ended without emitting {kind.signal}, which it declares")

    def require(self, verb: str, what: Literal["needs", "makes", "adds"], key: str) -> str:
        """The label of the running handler, if it declared the data. Raises `BusError` otherwise."""
        self.check_thread()
        if self.running is None:
            raise BusError(f"{key} was used outside a handler; a record belongs to the handler that is running")
        slot = self.running.slot
        if key not in (name.removesuffix("?") for name in getattr(slot, what)):
            raise BusError(f'{slot} {verb} without declaring it: @on(..., {what}=["{key}"])')
        return slot.label

    def holds(self, record: BusRecord) -> bool:
        """Whether this is the record of the event being sent."""
        return record is self._record

    def check_thread(self) -> None:
        """Raise `BusError` anywhere but on the thread that emitted first."""
        current = threading.get_ident()
        if self._thread is None:
            self._thread = current
        elif self._thread != current:
            raise BusError(
                f"the bus was used from thread '{threading.current_thread().name}'; signals, stop and records belong "
                "to the thread of the loop. Let metrics travel with the groups or through take_metrics()."
            )

    def detach(self) -> None:
        """Let go of all plugins."""
        self.plan = Plan()
        self.times = HookTimes([])
        self._signals.clear()
        self._namespace.clear()

    def _send(self, event: Event) -> None:
        signal = self._signals.get(type(event))
        if signal is None:
            raise BusError(f"{type(event).__name__} is no signal of this plan; nothing handles or emits it")
        object.__setattr__(event, "control", self.control)  # handles belong to the bus that sends
        if self._record is not None and isinstance(event, (StepEvent, FitEnd)):
            object.__setattr__(event, "record", self._record)
        signal.send(event)
