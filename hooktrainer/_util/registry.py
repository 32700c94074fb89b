"""Resolve the names that a configuration gives: one syntax and one set of errors for every kind of object.

A name is registered (`staleness`), or gives a module (`package.module:Name`) or a file (`file.py:Name`).
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Generic, Literal, TypeVar

import attrs

from hooktrainer._util.imports import described, load_module, require_file
from hooktrainer.errors import ConfigError, did_you_mean

T = TypeVar("T")

BUILT_IN: Final = "hooktrainer"
"""The distribution that registers the built-in names."""
NAMES_A: Final = "hooktrainer.names_a"
"""Key of field metadata: the `Kind` that the value of an option is a name of."""
BUILDS_A: Final = "hooktrainer.builds_a"
"""Key of field metadata: the `Kind` of the object in the field; `use` and its options are keys next to the field."""
FILE: Final = "hooktrainer.file"
"""Key of field metadata: the value is a file of data, which YAML names relative to its own folder."""
HINT: Final = "hooktrainer.hint"
"""Key of field metadata: a sentence that ends the faults of the field, or a function that returns it."""


@attrs.frozen
class Registered:
    """The object that a registered name refers to."""

    target: str
    """`package.module:Name`."""
    distribution: str = BUILT_IN
    """The installed distribution that registers the name."""
    rivals: tuple[str, ...] = ()
    """Other distributions that register the same name."""


def _accept(_found: Any, _where: str) -> None:
    """Accept any class or function."""


@attrs.frozen(eq=False)
class Kind(Mapping[str, Registered], Generic[T]):
    """A kind of object that a configuration can name, as a mapping of its registered names."""

    noun: str
    """The word for one object of this kind in messages."""
    group: str = ""
    """Entry-point group that registers names; empty if `table` has all of them."""
    table: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    """Names registered in code, each with `package.module:name`."""
    thing: Literal["class", "function"] = "class"
    """The Python object behind a name."""
    check: Callable[[Any, str], None] = attrs.field(default=_accept, repr=False)
    """Raise `ConfigError` for an object of another kind; receives the object and the module or file it is from."""

    def resolve(self, name: str) -> T:
        """Return the object behind a name; a relative file is relative to the working directory.

        Raises `ConfigError`, caused by the exception of a module that failed during its import.
        """
        target = name
        if ":" not in name:
            self._check_registered(name, ())
            target = self[name].target
        self._check_form(target)
        where, _, attribute = target.rpartition(":")
        module = load_module(where)
        try:
            found: Any = getattr(module, attribute, None)
        except Exception as error:
            raise ConfigError(f"'{attribute}' of {where} cannot be read: {described(error)}") from error
        if not self._is_thing(found):
            alike = inspect.isclass if self.thing == "class" else inspect.isroutine
            similar = [key for key, value in vars(module).items() if alike(value)]
            other = f", but an object of type {type(found).__name__}" if found is not None else ""
            raise ConfigError(f"{where} has no {self.thing} '{attribute}'{other}.{did_you_mean(attribute, similar)}")
        self.check(found, where)
        return typing.cast("T", found)

    def check_name(self, name: str, *, besides: tuple[str, ...] = ()) -> None:
        """Raise `ConfigError` unless the name is in `besides`, registered once, or resolvable.

        Registered names are not imported. Neither are functions, since their module may import torch; a file with
        functions must exist.
        """
        where, colon, _ = name.rpartition(":")
        if name in besides:
            return
        if not colon:
            self._check_registered(name, besides)
        elif self.thing == "class":
            self.resolve(name)
        else:
            self._check_form(name)
            if where.endswith(".py"):
                require_file(Path(where))

    def option(
        self, default: str, *, besides: tuple[str, ...] = (), validator: Sequence[Callable[..., None]] = ()
    ) -> Any:
        """Declare an option whose value is a name of this kind, or one of `besides`.

        YAML may write `file.py:Name` relative to the YAML file.
        """

        def is_name(_instance: object, _field: attrs.Attribute[str], value: str) -> None:
            self.check_name(value, besides=besides)

        def known_names() -> str:
            return f"There are {', '.join((*besides, *self))}."

        metadata = {NAMES_A: self, HINT: known_names}
        checks = [attrs.validators.instance_of(str), is_name, *validator]
        return attrs.field(default=default, validator=checks, metadata=metadata)

    def __getitem__(self, name: str) -> Registered:
        return self._registered()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._registered())

    def __len__(self) -> int:
        return len(self._registered())

    def _registered(self) -> Mapping[str, Registered]:
        if self.group:
            return registered_in(self.group)
        return {name: Registered(target) for name, target in self.table.items()}

    def _check_registered(self, name: str, besides: tuple[str, ...]) -> None:
        if name.endswith(".py"):
            example = "MyClass" if self.thing == "class" else "my_function"
            text = f"'{name}' is a file; append the name of the {self.thing} in it, as in {name}:{example}"
            raise ConfigError(text)
        known = (*besides, *self)
        if name not in self:
            there = f"there are {', '.join(known)}" if known else "none is registered"
            text = f"no {self.noun} has the name '{name}'; {there}, or write {self._forms()}"
            raise ConfigError(f"{text}.{did_you_mean(name, known)}")
        if rivals := self[name].rivals:
            owners = " and ".join((self[name].distribution, *rivals))
            text = f"'{name}' is registered by {owners}; name the {self.thing} itself, as in {self[name].target}"
            raise ConfigError(text)

    def _check_form(self, name: str) -> None:
        where, _, attribute = name.rpartition(":")
        parts = (attribute,) if where.endswith(".py") else (*where.split("."), attribute)
        if not all(part.isidentifier() for part in parts):
            blank = ", without blanks around the colon" if any(part != part.strip() for part in parts) else ""
            raise ConfigError(f"'{name}' is not a name; write {self._forms()}{blank}")

    def _forms(self) -> str:
        name = "Class" if self.thing == "class" else "function"
        return f"package.module:{name} or file.py:{name}"

    def _is_thing(self, found: object) -> bool:
        return isinstance(found, type) if self.thing == "class" else callable(found)


@cache
def registered_in(group: str) -> Mapping[str, Registered]:
    """Return the names that installed distributions register in an entry-point group, sorted."""
    found: dict[str, Registered] = {}
    for point in sorted(entry_points(group=group), key=lambda point: (point.name, _owner(point))):
        first = found.setdefault(point.name, Registered(point.value, _owner(point)))
        if first.distribution != _owner(point):
            found[point.name] = attrs.evolve(first, rivals=(*first.rivals, _owner(point)))
    return MappingProxyType(found)


def check_call(made: type, where: str, noun: str, **arguments: object) -> None:
    """Raise `ConfigError` unless a class can be called with these arguments, by position and in this order."""
    name = made.__name__
    try:
        signature = inspect.signature(made)
    except ValueError:  # classes written in C may have no signature
        return
    try:
        signature.bind(*arguments.values())
    except TypeError as error:
        text = f"a {noun} is constructed as {name}({', '.join(arguments)}), but {name} of {where} takes"
        takes = f"({', '.join(signature.parameters)}): {error}"
        remedy = "Make these its first parameters, and give every other one a default."
        raise ConfigError(f"{text} {takes}. {remedy}") from error


def check_method(method: Callable[..., Any], owner: str, noun: str, name: str, *parameters: str) -> None:
    """Raise `ConfigError` unless a method of a class can be called with these arguments, by position."""
    try:
        signature = inspect.signature(method)
    except ValueError:  # methods written in C may have no signature
        return
    try:
        signature.bind(None, *parameters)  # None for the object
    except TypeError as error:
        text = f"{name} of {owner} takes ({', '.join(signature.parameters)}), but a {noun} has"
        raise ConfigError(f"{text} {name}(self, {', '.join(parameters)}): {error}") from error


def _owner(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else "an unnamed distribution"
