"""Plugins: attrs classes whose fields are YAML options and whose methods marked with `@on` are handlers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from functools import partial
from types import FunctionType
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

import attrs

from hooktrainer._util.durations import is_duration as is_duration  # noqa: PLC0414 (public here)
from hooktrainer.errors import ConfigError, Fault, PortError, did_you_mean
from hooktrainer.events import Priority as Priority  # noqa: PLC0414 (public here)

if TYPE_CHECKING:
    from hooktrainer.config import Config

Method = TypeVar("Method", bound=Callable[..., None])


@attrs.frozen
class HandlerSpec:
    """The declaration of a handler by `@on`; it is checked when the plan is composed."""

    event: object
    priority: object
    needs: tuple[str, ...]
    makes: tuple[str, ...]
    adds: tuple[str, ...]
    emits: tuple[object, ...]
    every: object


SPEC_ATTRIBUTE: Final = "__hooktrainer_spec__"


def on(
    event: object,
    *,
    priority: int = Priority.COLLECT,
    needs: Sequence[str] = (),
    makes: Sequence[str] = (),
    adds: Sequence[str] = (),
    emits: Sequence[type] = (),
    every: int | str | None = None,
) -> Callable[[Method], Method]:
    """Mark a method as the handler of an event.

    `needs`, `makes` and `adds` name the data that the handler reads, makes or adds to, such as `"metrics.row"`. A need
    that ends in `?` may be absent. `emits` lists the events that the handler may emit. With `every` (a number, or the
    name of an option), the handler runs only on every n-th step and on the last one. Raises `TypeError` for a use that
    would have no effect.
    """
    if isinstance(event, FunctionType):
        code = event.__code__
        place = f"{event.__qualname__} ({code.co_filename}, line {code.co_firstlineno})"
        raise TypeError(f"@on over {place} names no event: write @on(StepEnd) or another event class")
    for name, given in {"needs": needs, "makes": makes, "adds": adds, "emits": emits}.items():
        if isinstance(given, (str, type)):
            raise TypeError(f"@on(..., {name}={given!r}): expected a list, {name}=[{given!r}]")

    def mark(method: Method) -> Method:
        if hasattr(method, SPEC_ATTRIBUTE):
            raise TypeError(f"{getattr(method, '__name__', method)} is marked twice; write one method for each event")
        spec = HandlerSpec(event, priority, tuple(needs), tuple(makes), tuple(adds), tuple(emits), every)
        setattr(method, SPEC_ATTRIBUTE, spec)
        return method

    return mark


class _Unbound:
    """Value of a port that is not bound."""

    def __init__(self, port: str = "") -> None:
        self._port = port

    def __repr__(self) -> str:
        return "<unbound port>"

    def __getattr__(self, name: str) -> object:
        raise PortError(
            f"an unbound port was used ('.{name}'). In a run, ports are bound by their type before fit_start; "
            "in a test, pass a fake: MyPlugin(engine=FakeEngine())."
        )

    def __iter__(self) -> Any:
        return self.__getattr__("__iter__")


UNBOUND: Final = _Unbound()
_PORT: Final = "hooktrainer.port"
_STATE: Final = "hooktrainer.state"
METRIC: Final = "hooktrainer.metric"
"""Key of field metadata: whether the value of an option is the name of a metric."""


def port(*, named: bool = False, default: Sequence[str] = ()) -> Any:
    """Declare a field for a component of the run, bound by its type after the plan is built.

    With `named`, YAML lists names, or mappings with `use` and options (`sinks: [console, {use: csv, critical: true}]`;
    `default` if left out), and the field is a tuple of these objects. In Python, pass the objects.
    """
    if named:
        return attrs.field(default=tuple(default), converter=tuple, metadata={_PORT: "named"}, kw_only=True)
    return attrs.field(default=UNBOUND, metadata={_PORT: "typed"}, kw_only=True, repr=False, eq=False)


def metric(default: Any = attrs.NOTHING) -> Any:
    """Declare an option whose value names a metric of the row, or is None.

    A name that no part of the run makes is refused before the run starts.
    """
    return attrs.field(default=default, metadata={METRIC: True}, kw_only=True)


def state(default: Any = attrs.NOTHING, *, factory: Callable[[], Any] | None = None) -> Any:
    """Declare a field that is saved in checkpoints; it is not an option.

    Supported values are None, booleans, numbers, strings, bytes, lists, tuples, sets, dicts, counters and deques of
    these, tensors and numeric arrays, and random generators of Python, NumPy and torch. Subclasses are not supported.
    For other values, override `state_dict` and `load_state_dict`.

    After a field is added, renamed or removed, a resume from older checkpoints raises an error that names the field,
    unless the plugin overrides `load_state_dict` to supply it. Each plugin gets its own copy of the default.
    """
    if default is not attrs.NOTHING and not isinstance(default, attrs.Factory):  # type: ignore[arg-type]
        return state(factory=partial(deepcopy, default))
    return attrs.field(default=default, factory=factory, init=False, metadata={_STATE: True}, repr=False)


@attrs.define
class Plugin:
    """Base of all plugins."""

    adds_metrics: ClassVar[tuple[str, ...] | None] = None
    """Names of the metrics that handlers add to the row; a name that ends in `/` is a prefix. None: any metric."""

    @property
    def patience_s(self) -> float:
        """Seconds, above 0, that the handlers of `fit_end` may take after a signal; then they are interrupted."""
        return 4.0

    def check(self, config: Config) -> Iterable[str]:  # noqa: ARG002 (the default has no checks)
        """Return the conflicts between this plugin's options and the rest of the run, one sentence each."""
        return ()

    def state_dict(self) -> dict[str, object]:
        """Return the state to save in checkpoints: the fields declared with `state()`."""
        return {field.name.lstrip("_"): deepcopy(getattr(self, field.name)) for field in state_fields(type(self))}

    def load_state_dict(self, saved: Mapping[str, object]) -> None:
        """Restore the state returned by `state_dict()`.

        Raises `ConfigError` for unknown or missing keys, and changes nothing in that case.
        """
        fields = {field.name.lstrip("_"): field.name for field in state_fields(type(self))}
        faults = [
            Fault("", f"{type(self).__name__} has no state '{key}'.{did_you_mean(key, fields)}")
            for key in saved
            if key not in fields
        ]
        faults += [
            Fault("", f"the state '{key}' of {type(self).__name__} is missing") for key in fields if key not in saved
        ]
        if faults:
            raise ConfigError(faults)
        for key, value in saved.items():
            setattr(self, fields[key], deepcopy(value))


def option_fields(cls: type[Plugin]) -> tuple[attrs.Attribute[Any], ...]:
    """Return the fields that YAML can set: options and named ports."""
    return tuple(field for field in attrs.fields(cls) if field.init and field.metadata.get(_PORT) != "typed")


def port_fields(cls: type[Plugin], *, named: bool) -> tuple[attrs.Attribute[Any], ...]:
    """Return the port fields: those named in YAML, or those bound by type."""
    wanted = "named" if named else "typed"
    return tuple(field for field in attrs.fields(cls) if field.metadata.get(_PORT) == wanted)


def has_state(cls: type[Plugin]) -> bool:
    """Return whether instances save state in checkpoints."""
    return bool(state_fields(cls)) or cls.state_dict is not Plugin.state_dict


def state_fields(cls: type[Plugin]) -> tuple[attrs.Attribute[Any], ...]:
    """Return the fields declared with `state()`."""
    return tuple(field for field in attrs.fields(cls) if field.metadata.get(_STATE))
