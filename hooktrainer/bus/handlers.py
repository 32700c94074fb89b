"""Handlers of the plan, read from the marked methods of plugins. Each declaration is checked separately here."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Iterator, Mapping
from types import FunctionType

import attrs

from hooktrainer.errors import Fault, did_you_mean
from hooktrainer.events import EVENTS, PRIORITY_HINT, Event, StepEvent, WeightsSynced, snake_case
from hooktrainer.plugin import SPEC_ATTRIBUTE, HandlerSpec, Plugin, Priority


@attrs.frozen(eq=False)
class PlacedPlugin:
    """A plugin at its place in the plugin list, with its instance name, YAML address and YAML priorities."""

    plugin: Plugin
    name: str
    address: str = ""
    priority: Mapping[str, object] = attrs.field(factory=dict)
    """Priorities by signal, or by method where the plugin has two handlers on one signal."""

    @classmethod
    def of(cls, plugin: Plugin | PlacedPlugin, place: int) -> PlacedPlugin:
        """Return the plugin with its place; a bare plugin is named after its class."""
        if isinstance(plugin, PlacedPlugin):
            return plugin
        return cls(plugin, snake_case(type(plugin).__name__), f"plugins[{place}]")


@attrs.frozen(eq=False)
class Handler:
    """A handler at its place in the plan."""

    owner: PlacedPlugin
    method: str
    event: type[Event]
    number: int
    needs: tuple[str, ...] = ()
    makes: tuple[str, ...] = ()
    adds: tuple[str, ...] = ()
    emits: tuple[type[Event], ...] = ()
    every: int | None = None

    @property
    def band(self) -> Priority:
        """Band that the handler runs in."""
        return Priority.band(self.number)

    @property
    def label(self) -> str:
        """Name of the handler in plans and errors, such as `weight_sync.sync`."""
        return f"{self.owner.name}.{self.method}"

    def __str__(self) -> str:
        return f"{self.label} ({self.event.signal}, {self.band.name} {self.number})"


@attrs.define
class PluginHandlers:
    """The handlers of one plugin in the order of its class, and the faults found in them."""

    handlers: list[Handler] = attrs.field(factory=list)
    faults: list[Fault] = attrs.field(factory=list)
    unmade: set[str] = attrs.field(factory=set)
    """Data that faulty handlers would make; handlers that need it are not reported too."""


def handlers_of(owner: PlacedPlugin) -> PluginHandlers:
    """Read and check every marked method of a plugin."""
    found = PluginHandlers()
    if _forgot_attrs(type(owner.plugin)):
        text = f"{type(owner.plugin).__name__} has fields but no @attrs.define(kw_only=True) above the class"
        found.faults.append(Fault(owner.address, text))
    for method, spec in _marked(owner, found.faults):
        problems = list(_problems(owner.plugin, method, spec))
        text = f"{type(owner.plugin).__name__}.{method}"
        found.faults += [Fault(owner.address, f"{text} {problem}") for problem in problems]
        if problems:
            found.unmade |= set(spec.makes)
        else:
            found.handlers.append(_handler(owner, method, spec))
    found.handlers = _with_overrides(owner, found.handlers, found.faults)
    return found


def _forgot_attrs(cls: type[Plugin]) -> bool:
    return "__attrs_attrs__" not in vars(cls) and any(
        type(value).__name__ == "_CountingAttr" or name in vars(cls).get("__annotations__", {})
        for name, value in vars(cls).items()
    )


def _marked(owner: PlacedPlugin, faults: list[Fault]) -> Iterator[tuple[str, HandlerSpec]]:
    cls = type(owner.plugin)
    names = dict.fromkeys(name for base in reversed(cls.__mro__) for name in vars(base))
    for name in names:
        found = inspect.getattr_static(cls, name)
        spec = getattr(found, SPEC_ATTRIBUTE, None)
        if isinstance(spec, HandlerSpec):
            yield name, spec
        elif any(hasattr(vars(base).get(name), SPEC_ATTRIBUTE) for base in cls.__mro__):
            text = f"{cls.__name__}.{name} overrides a handler but has no @on(...), so it would never be called"
            faults.append(Fault(owner.address, text + ". Mark it again, or rename it."))
        elif name.startswith("on_") and callable(getattr(found, "__func__", found)):
            signals = [event.signal for event in EVENTS]
            hint = did_you_mean(name.removeprefix("on_"), signals)
            text = f"{cls.__name__}.{name} looks like a handler but has no @on(...)."
            faults.append(Fault(owner.address, f"{text} Mark it with its event, or rename it.{hint}"))


def _problems(plugin: Plugin, method: str, spec: HandlerSpec) -> Iterator[str]:
    if not (isinstance(spec.event, type) and issubclass(spec.event, Event)) or spec.event is Event:
        known = {event.signal: event.__name__ for event in EVENTS}
        found = spec.event.__name__ if isinstance(spec.event, type) else repr(spec.event)
        word = str(spec.event) if isinstance(spec.event, str) else found
        hint = did_you_mean(word, known.values()) or did_you_mean(word, known)
        yield f"is marked for {found}, which is not an event. Events are classes: {', '.join(known.values())}.{hint}"
        return
    yield from _signature_problems(plugin, method, spec.event)
    if problem := _number_problem(spec.priority):
        yield f"has the priority {problem}"
    if spec.every is not None:
        yield from _every_problems(plugin, spec, spec.event)
    for emitted in spec.emits:
        if not (isinstance(emitted, type) and issubclass(emitted, Event)):
            yield f"declares to emit {emitted!r}, which is not an event class"
        elif emitted in EVENTS and emitted is not WeightsSynced:
            yield f"declares to emit {emitted.signal}, which the loop sends; plugins may emit only weights_synced"


def _signature_problems(plugin: Plugin, method: str, event: type[Event]) -> Iterator[str]:
    function = inspect.getattr_static(type(plugin), method)
    if not isinstance(function, FunctionType):
        yield f"must be a plain method, found a {type(function).__name__}"
        return
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        yield "is async or a generator, so a call would not run its body"
    taken = list(inspect.signature(function).parameters.values())[1:]
    if len(taken) != 1 or taken[0].kind not in (taken[0].POSITIONAL_ONLY, taken[0].POSITIONAL_OR_KEYWORD):
        yield f"takes ({', '.join(map(str, taken))}) but a handler takes one argument, the event"
        return
    try:
        hint = typing.get_type_hints(function).get(taken[0].name, event)
    except (NameError, TypeError, AttributeError):  # a name that is imported for type checking only
        return
    if isinstance(hint, type) and issubclass(hint, Event) and not issubclass(event, hint):
        yield f"is marked for {event.__name__} but its argument is annotated as {hint.__name__}"


def _number_problem(number: object) -> str | None:
    if not isinstance(number, int) or isinstance(number, bool):
        return f"{number!r}, which is not an integer. {PRIORITY_HINT}"
    try:
        Priority.band(number)
    except ValueError as error:
        return f"{error}. {PRIORITY_HINT}"
    return None


def _every_problems(plugin: Plugin, spec: HandlerSpec, event: type[Event]) -> Iterator[str]:
    if not issubclass(event, StepEvent):
        yield f"has every= on {event.signal}, which belongs to no step"
        return
    options = [field.name for field in attrs.fields(type(plugin)) if field.init]
    if isinstance(spec.every, str) and spec.every not in options:
        yield f"has every={spec.every!r}, but there is no such option.{did_you_mean(spec.every, options)}"
        return
    number = _every(plugin, spec)
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        yield f"runs every {number!r} steps; expected an integer of at least 1"


def _every(plugin: Plugin, spec: HandlerSpec) -> object:
    return getattr(plugin, spec.every) if isinstance(spec.every, str) else spec.every


def _handler(owner: PlacedPlugin, method: str, spec: HandlerSpec) -> Handler:
    return Handler(
        owner=owner,
        method=method,
        event=typing.cast("type[Event]", spec.event),
        number=int(typing.cast("int", spec.priority)),
        needs=spec.needs,
        makes=spec.makes,
        adds=spec.adds,
        emits=typing.cast("tuple[type[Event], ...]", spec.emits),
        every=typing.cast("int | None", _every(owner.plugin, spec)),
    )


def _with_overrides(owner: PlacedPlugin, handlers: list[Handler], faults: list[Fault]) -> list[Handler]:
    numbers: dict[str, int] = {}
    for key, number in owner.priority.items():
        address = f"{owner.address}.priority.{key}"
        on_signal = [handler.method for handler in handlers if handler.event.signal == key]
        methods = [handler.method for handler in handlers if handler.method == key] or on_signal
        if len(methods) > 1:
            text = f"'{owner.name}' has several handlers on {key}; name the method instead: {', '.join(methods)}"
            faults.append(Fault(address, text))
        elif not methods:
            known = {handler.event.signal for handler in handlers} | {handler.method for handler in handlers}
            handled = sorted(f"{handler.event.signal} (method {handler.method})" for handler in handlers)
            text = f"'{owner.name}' handles no signal '{key}'. It handles {', '.join(handled) or 'none'}."
            faults.append(Fault(address, text + did_you_mean(key, known)))
        elif problem := _number_problem(number):
            faults.append(Fault(address, f"the priority is {problem}"))
        else:
            numbers[methods[0]] = typing.cast("int", number)
    return [attrs.evolve(handler, number=numbers.get(handler.method, handler.number)) for handler in handlers]
