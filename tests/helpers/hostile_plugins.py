"""Plugins whose class or object raises when an attribute is read or set, or when it is constructed."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from hooktrainer import Plugin, on, port, state
from hooktrainer.events import StepEnd
from hooktrainer.ports import Clock, Sink


class HostileClass(type):
    """Raises when the attribute named by `hostile` is read from the class."""

    def __getattribute__(cls, name: str) -> object:
        if type.__getattribute__(cls, "__dict__").get("hostile") == name:
            raise RuntimeError(f"no {name} of the class")
        return type.__getattribute__(cls, name)


def of_class(name: str) -> type[Plugin]:
    """Return a plugin whose class raises for an attribute."""

    @attrs.define(kw_only=True, slots=False)
    class Hostile(Plugin, metaclass=HostileClass):
        every: int = 1

        @on(StepEnd, adds=["metrics.row"], every="every")
        def handle(self, event: StepEnd) -> None: ...

    Hostile.hostile = name
    return Hostile


def of_object(name: str) -> type[Plugin]:
    """Return a plugin whose object raises for an attribute."""

    @attrs.define(kw_only=True, slots=False)
    class Hostile(Plugin):
        every: int = 1
        sinks: Sequence[Sink] = port(named=True)
        clock: Clock = port()
        seen: int = state(0)

        @on(StepEnd, every="every")
        def handle(self, event: StepEnd) -> None: ...

        def __getattribute__(self, attribute: str) -> object:
            if attribute == name:
                raise RuntimeError(f"no {name} of the object")
            return object.__getattribute__(self, attribute)

    return Hostile


CLASS_ATTRIBUTES = ("__attrs_attrs__", "state_dict", "__mro__", "__name__", "__dict__")
OBJECT_ATTRIBUTES = ("check", "every", "sinks", "clock", "seen", "handle", "patience_s")
for _name in CLASS_ATTRIBUTES:
    globals()[f"Class_{_name.strip('_')}"] = of_class(_name)
for _name in OBJECT_ATTRIBUTES:
    globals()[f"Object_{_name}"] = of_object(_name)


class CallingMeta(type):
    """Raises when the class is called."""

    def __call__(cls, *args: object, **options: object) -> object:
        raise RuntimeError("no call")


class TruthMeta(type):
    """Raises for every comparison and check of the class."""

    def __instancecheck__(cls, instance: object) -> bool:
        raise RuntimeError("no instance check")

    def __subclasscheck__(cls, subclass: type) -> bool:
        raise RuntimeError("no subclass check")

    def __bool__(cls) -> bool:
        raise RuntimeError("no truth")


@attrs.define(kw_only=True)
class Calls(Plugin, metaclass=CallingMeta):
    every: int = 1


@attrs.define(kw_only=True)
class Truth(Plugin, metaclass=TruthMeta):
    every: int = 1

    @on(StepEnd)
    def handle(self, event: StepEnd) -> None: ...


@attrs.define(kw_only=True, slots=False, on_setattr=attrs.setters.NO_OP)
class Sets(Plugin):
    sinks: Sequence[Sink] = port(named=True)

    def __setattr__(self, name: str, value: object) -> None:
        raise RuntimeError(f"no setting of {name}")


@attrs.define(kw_only=True)
class Leaves(Plugin):
    @property
    def patience_s(self) -> float:
        raise SystemExit(3)


@attrs.define(kw_only=True)
class Waits(Plugin):
    patience_s = "long"


@attrs.define(kw_only=True)
class Saves(Plugin):
    def state_dict(self) -> dict[str, object]:
        raise RuntimeError("no state")


@attrs.define(kw_only=True)
class Patient(Plugin):
    clock: Clock = port()

    @property
    def patience_s(self) -> float:
        return self.clock.now()
