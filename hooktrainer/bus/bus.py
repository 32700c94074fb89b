"""The bus: it sends events to the handlers of a frozen plan, over blinker signals in a private namespace.

Emitting is synchronous. A signal that a handler emits is delivered when the handler's band ends, never inside another
handler. An exception stops delivery, except on `fit_end`, where every handler is called.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import AbstractContextManager
from time import perf_counter
from typing import Any, NoReturn, TypeAlias

import blinker

from hooktrainer._util.signals import Aborted, Interrupts
from hooktrainer._util.timeline import LOOP, KeptTimeline, Labels
from hooktrainer.bus.control import CheckedRecord, Declaration, RunControl
from hooktrainer.bus.handlers import Handler, PlacedPlugin
from hooktrainer.bus.plan import Plan
from hooktrainer.bus.timing import Callback, HandlerTimes, TimedHandler
from hooktrainer.errors import BusError, ConfigError, add_note, first_error
from hooktrainer.events import Event, FitEnd, Priority, StepEvent, StepRecord
from hooktrainer.metrics import Record
from hooktrainer.plugin import Plugin

Context: TypeAlias = Callable[[], AbstractContextManager[object]]


class Band:
    """The handlers of one band of a signal, and the context that they run in."""

    def __init__(self, priority: Priority, handlers: Sequence[Handler]) -> None:
        self.priority = priority
        self.handlers = tuple(map(TimedHandler, handlers))
        self.emits = any(handler.emits for handler in handlers)
        self.context: Context | None = None


class PlannedSignal(blinker.NamedSignal):
    """A blinker signal that calls the handlers of the plan in the order of the plan; it holds strong references."""

    def __init__(self, bus: Bus, event: type[Event]) -> None:
        super().__init__(event.signal, event.__doc__)
        self._bus = bus
        self.bands = tuple(Band(priority, handlers) for priority, handlers in bus.plan.bands(event))
        self.handlers = tuple(handler for band in self.bands for handler in band.handlers)
        self._closes = issubclass(event, FitEnd)
        for handler in self.handlers:
            super().connect(handler.call, weak=False)

    def connect(self, *_: object, **__: object) -> NoReturn:
        """Raise `BusError`: a composed plan is frozen."""
        raise BusError(f"cannot connect to '{self.name}': the plan is frozen. Write a plugin with a handler instead.")

    def disconnect(self, *_: object, **__: object) -> NoReturn:
        """Raise `BusError`: a composed plan is frozen."""
        raise BusError(f"cannot disconnect from '{self.name}': the plan is frozen")

    def receivers_for(self, sender: Any) -> Generator[Callback, None, None]:
        """Yield the handlers that a send would call, in running order."""
        for handler in self.handlers:
            if not isinstance(sender, Event) or handler.due(sender):
                yield handler.call

    def send(self, sender: Any = None, /, **_: Any) -> list[tuple[Callback, Any]]:
        """Call the handlers of an event in order and time each; deliver nested signals at the end of their band.

        Return an empty list, since handlers return nothing. An exception of a handler is raised with a note that names
        the handler. From `fit_end` on, the other handlers are still called; then the first error is raised, and the
        others are added to it as notes.
        """
        if self.is_muted:
            return []
        bus = self._bus
        failures: list[BaseException] = []
        bus.closing = bus.closing or self._closes
        started = perf_counter()
        try:
            for band in self.bands:
                if band.context is None or not any(handler.due(sender) for handler in band.handlers):
                    self._call(band, sender, failures)
                else:
                    with band.context():
                        self._call(band, sender, failures)
        finally:
            bus.running = None  # an interrupt can come between two handlers
            if bus.timeline.kept:
                bus.timeline.add(LOOP, self.name, started, perf_counter(), _labels(sender))
        if failures:
            raise first_error(failures, "in the same signal")
        return []

    def _call(self, band: Band, event: Any, failures: list[BaseException]) -> None:
        """Call the handlers of a band and deliver the signals that they emitted; append the errors once closing."""
        bus = self._bus
        interrupts = bus.interrupts
        started = perf_counter()
        for handler in band.handlers:
            if handler.every is not None and not handler.due(event):
                continue
            if interrupts.due:
                interrupts.check()
            bus.running = handler
            try:
                handler.call(event)
            except BaseException as error:
                interrupts.process.exit_if_copied(error)
                _add_origin(error, handler.planned, event, interrupts)
                if not bus.closing or isinstance(error, Aborted):
                    raise
                failures.append(error)
            ended = perf_counter()
            handler.calls += 1
            handler.seconds += (taken := ended - started)
            if taken > handler.longest:  # noqa: PLR1730 (max() costs more than the rest of this)
                handler.longest = taken
            if bus.timeline.kept:
                bus.timeline.add(LOOP, handler.planned.label, started, ended)
            started = ended
        bus.running = None
        if interrupts.due:
            interrupts.process.exit_if_copied()
        if band.emits:
            failures += bus.deliver(band.handlers, event)


def _labels(event: Any) -> Labels:
    """Return the step and the version of an event, as far as it has them."""
    return {name: getattr(event, name) for name in ("step", "version") if hasattr(event, name)}


def _add_origin(error: BaseException, handler: Handler, event: Any, interrupts: Interrupts) -> None:
    """Add a note that names plugin, method, signal, band and step."""
    interrupts.note(error)
    if isinstance(error, ConfigError):
        error.place(handler.owner.address)
    step = f", step {event.step}" if hasattr(event, "step") else ""
    where = f" ({handler.owner.address})" if handler.owner.address else ""
    add_note(
        error,
        f"raised by plugin '{handler.owner.name}'{where}: {type(handler.owner.plugin).__name__}.{handler.method} "
        f"on {handler.event.signal}, {handler.band.name} {handler.number}{step}",
    )


class Bus:
    """The handlers of a plugin list in their final order, and the signals that call them."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.control = RunControl(self)
        self.running: TimedHandler | None = None
        """The handler being called; None between handlers."""
        self.closing = False
        """Whether `fit_end` was sent; after that an error does not stop delivery."""
        self.interrupts = Interrupts()
        """Pending signals of the operating system, which end the run between two handlers."""
        self.timeline = KeptTimeline()
        """Spans of signals and handlers, to which the loop adds its own."""
        self._namespace = blinker.Namespace()
        self._signals = {event: PlannedSignal(self, event) for event in plan.handlers}
        self._namespace.update({signal.name: signal for signal in self._signals.values()})
        self._guards: dict[type[Event], Callable[[Any], None]] = {}
        self._queued: list[Event] = []
        self._record: CheckedRecord | None = None
        self._thread: int | None = None
        self.times = HandlerTimes([handler for signal in self._signals.values() for handler in signal.handlers])

    @classmethod
    def compose(cls, plugins: Iterable[Plugin | PlacedPlugin]) -> Bus:
        """Order and check the plugins. Raises `PlanError` with every fault."""
        return cls(Plan.build(plugins))

    def signal(self, event: type[Event] | str) -> blinker.NamedSignal:
        """Return the blinker signal of an event, for `muted` and introspection; it accepts no connections."""
        return self._namespace[event if isinstance(event, str) else event.signal]

    def guard(self, event: type[Event], check: Callable[[Any], None]) -> None:
        """Call `check` as soon as this event is emitted. A handler that declares the event must then emit it."""
        self._guards[event] = check

    def around(self, event: type[Event], priority: Priority, context: Context) -> None:
        """Run a band of a signal, with the signals that it emits, inside a new `context()` each time.

        The context is not entered when the band has no handler to call.
        """
        for band in self._signals[event].bands:
            if band.priority is priority:
                band.context = context

    def emit(self, event: Event, record: Record | None = None) -> None:
        """Send an event; return when all its handlers, nested ones included, have run."""
        self.check_thread()
        if self.running is not None:
            raise BusError(
                f"{self.running.planned} called Bus.emit; a handler uses event.control.emit and declares it in emits"
            )
        self.interrupts.check()
        self._queued.clear()  # left by a handler that failed
        self._record = None if record is None else CheckedRecord(record, self)
        self._send(event)

    def queue(self, event: Event) -> None:
        """Queue an event that the running handler declared, until its band ends."""
        self.check_thread()
        kind = type(event)
        handler = self.running
        if handler is None or kind not in handler.planned.emits:
            emitter = handler.planned if handler else "code outside a handler"
            raise BusError(f"{emitter} emitted {kind.signal} without declaring it: @on(..., emits=[{kind.__name__}])")
        if kind in self._guards:
            self._guards[kind](event)
        self._queued.append(event)

    def deliver(self, band: Sequence[TimedHandler], cause: Event) -> list[BaseException]:
        """Send the events that a band emitted, in the order of its declarations; return the errors once closing.

        Raises `BusError` if a guarded event was declared and not emitted.
        """
        queued, self._queued = self._queued, []
        declared = [kind for handler in band for kind in handler.planned.emits]
        failures: list[BaseException] = []
        try:
            self._check_guarded(band, cause, {type(event) for event in queued})
            for event in sorted(queued, key=lambda event: declared.index(type(event))):
                self._send(event)
        except BaseException as error:
            if not self.closing or isinstance(error, Aborted):
                raise
            failures.append(error)
        return failures

    def _check_guarded(self, band: Sequence[TimedHandler], cause: Event, sent: set[type[Event]]) -> None:
        for handler in band:
            for kind in handler.planned.emits:
                if kind in self._guards and kind not in sent and handler.due(cause):
                    raise BusError(f"{handler.planned} ended without emitting {kind.signal}, which it declares")

    def require(self, verb: str, declaration: Declaration, key: str) -> str:
        """Return the label of the running handler. Raises `BusError` unless it declared the key."""
        self.check_thread()
        if self.running is None:
            raise BusError(f"{key} was used outside a handler; a record belongs to the handler that is running")
        handler = self.running.planned
        if key not in (name.removesuffix("?") for name in getattr(handler, declaration)):
            raise BusError(f'{handler} {verb} without declaring it: @on(..., {declaration}=["{key}"])')
        return handler.label

    def holds(self, record: StepRecord) -> bool:
        """Return whether this is the record of the event being sent."""
        return record is self._record

    def check_thread(self) -> None:
        """Raise `BusError` on any thread but the one that emitted first."""
        current = threading.get_ident()
        if self._thread is None:
            self._thread = current
        elif self._thread != current:
            raise BusError(
                f"the bus was used from thread '{threading.current_thread().name}'; signals, stop and records belong "
                "to the thread of the loop. Pass metrics with the groups or through take_metrics()."
            )

    def detach(self) -> None:
        """Release all plugins."""
        self.plan = Plan()
        self.times = HandlerTimes([])
        self._signals.clear()
        self._namespace.clear()

    def _send(self, event: Event) -> None:
        signal = self._signals.get(type(event))
        if signal is None:
            raise BusError(f"{type(event).__name__} is not a signal of this plan: no handler handles or emits it")
        object.__setattr__(event, "control", self.control)  # both objects belong to the bus that sends
        if self._record is not None and isinstance(event, (StepEvent, FitEnd)):
            object.__setattr__(event, "record", self._record)
        signal.send(event)
