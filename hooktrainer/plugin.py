"""What a plugin is: an attrs class whose fields are its YAML options and whose marked methods are its handlers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final, TypeVar

import attrs

from hooktrainer.errors import ConfigError, Fault, PortError, did_you_mean
from hooktrainer.events import Priority as Priority  # noqa: PLC0414 (public here)

if TYPE_CHECKING:
    from hooktrainer.config import Config

Method = TypeVar("Method", bound=Callable[..., None])


@attrs.frozen
class HandlerSpec:
    """What `@on` says of a handler; checked at composition, not here."""

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

    `needs`, `makes` and `adds` name the data that it reads, makes or contributes to (`"metrics.row"`; a `?` behind a
    need says that it may be absent). `emits` lists the events that it may send. `every` (a number, or the name of an
    option that holds one) lets it run only on every n-th step and the last. Raises `TypeError` for a use that would
    silently do nothing.
    """
    if isinstance(event, FunctionType):
        code = event.__code__
        place = f"{event.__qualname__} ({code.co_filename}, line {code.co_firstlineno})"
        raise TypeError(f"@on over {place} names no event: write @on(StepEnd) or another one")
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
    """The value of a port that nobody bound."""

    def __init__(self, port: str = "") -> None:
        self._port = port

    def __repr__(self) -> str:
        return "<unbound port>"

    def __getattr__(self, name: str) -> object:
        raise PortError(
            f"a port was used ('.{name}') that nobody bound. In a run the composition binds it by its type; "
            "in a test pass a fake: MyPlugin(engine=FakeEngine())."
        )

    def __iter__(self) -> Any:
        return self.__getattr__("__iter__")


UNBOUND: Final = _Unbound()
_PORT: Final = "hooktrainer.port"
_STATE: Final = "hooktrainer.state"


def port(*, named: bool = False, default: Sequence[str] = ()) -> Any:
    """A field for something that the plugin works on, bound by its type after the plan is built.

    With `named`, YAML lists names (`sinks: [console, "my_lab.sinks:MySink"]`, else `default`) and the field receives a
    tuple of objects.
    """
    if named:
        return attrs.field(default=tuple(default), converter=tuple, metadata={_PORT: "named"}, kw_only=True)
    return attrs.field(default=UNBOUND, metadata={_PORT: "typed"}, kw_only=True, repr=False, eq=False)


def state(default: Any = attrs.NOTHING, *, factory: Callable[[], Any] | None = None) -> Any:
    """A field that is kept over a restart; it is no option.

    Kept are None, booleans, numbers, text and bytes, lists, tuples, sets, dicts, counters and deques of such, plain
    tensors and arrays of numbers, and the random generators of Python, NumPy and torch; no subclasses of them. Make
    anything else from these, as in `state_dict` and `load_state_dict` of your own.

    A field that is added, renamed or taken out makes older checkpoints unfit for the plugin: a resume from them is an
    error that names the field, unless a `load_state_dict` of your own fills in what is missing.
    """
    return attrs.field(default=default, factory=factory, init=False, metadata={_STATE: True}, repr=False)


@attrs.define
class Plugin:
    """Base of all plugins."""

    def check(self, config: Config) -> Iterable[str]:  # noqa: ARG002 (a plugin that checks nothing)
        """Faults between this plugin's options and the rest of the run, each a sentence with the numbers."""
        return ()

    def state_dict(self) -> dict[str, object]:
        """What is kept over a restart: the fields declared with `state()`."""
        return {field.name.lstrip("_"): deepcopy(getattr(self, field.name)) for field in state_fields(type(self))}

    def load_state_dict(self, kept: Mapping[str, object]) -> None:
        """Take back what `state_dict` gave.

        Raises `ConfigError` for keys that are unknown or missing, and changes nothing then.
        """
        fields = {field.name.lstrip("_"): field.name for field in state_fields(type(self))}
        faults = [
            Fault("", f"{type(self).__name__} keeps no state '{key}'.{did_you_mean(key, fields)}")
            for key in kept
            if key not in fields
        ]
        faults += [
            Fault("", f"the state '{key}' of {type(self).__name__} is missing") for key in fields if key not in kept
        ]
        if faults:
            raise ConfigError(faults)
        for key, value in kept.items():
            setattr(self, fields[key], deepcopy(value))


def option_fields(cls: type[Plugin]) -> tuple[attrs.Attribute[Any], ...]:
    """The fields that YAML can set: options and named ports."""
    return tuple(field for field in attrs.fields(cls) if field.init and field.metadata.get(_PORT) != "typed")


def port_fields(cls: type[Plugin], *, named: bool) -> tuple[attrs.Attribute[Any], ...]:
    """The fields that are ports, either those bound by type or those named in YAML."""
    wanted = "named" if named else "typed"
    return tuple(field for field in attrs.fields(cls) if field.metadata.get(_PORT) == wanted)


def keeps_state(cls: type[Plugin]) -> bool:
    """Whether anything of it is kept over a restart."""
    return bool(state_fields(cls)) or cls.state_dict is not Plugin.state_dict


def state_fields(cls: type[Plugin]) -> tuple[attrs.Attribute[Any], ...]:
    """The fields that are kept over a restart."""
    return tuple(field for field in attrs.fields(cls) if field.metadata.get(_STATE))
