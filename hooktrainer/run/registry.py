"""What YAML can name: a registered short name, `package.module:Class`, or `file.py:Class`.

Short names come from the entry points of installed distributions; the built-in parts register like anyone's.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import MappingProxyType
from typing import Final, get_args

import attrs

from hooktrainer._util.imports import load_module
from hooktrainer.config.short_forms import Kind
from hooktrainer.errors import ConfigError, did_you_mean
from hooktrainer.plugin import Plugin

KINDS: Final[tuple[Kind, ...]] = get_args(Kind)


@attrs.frozen
class Registered:
    """Where a short name leads to."""

    target: str
    """`package.module:Class`."""
    distribution: str
    """The installed distribution that registers it."""
    rivals: tuple[str, ...] = ()
    """Other distributions that register the same name for something else."""


@cache
def known(kind: Kind) -> Mapping[str, Registered]:
    """Every registered name of a kind, sorted."""
    found: dict[str, Registered] = {}
    for point in sorted(entry_points(group=f"hooktrainer.{kind}"), key=lambda point: (point.name, _owner(point))):
        first = found.setdefault(point.name, Registered(point.value, _owner(point)))
        if first.distribution != _owner(point):
            found[point.name] = attrs.evolve(first, rivals=(*first.rivals, _owner(point)))
    return MappingProxyType(found)


def check_name(kind: Kind, use: str) -> None:
    """Raise `ConfigError` unless the name is registered, by one distribution only, or names a class that will do.

    What is registered is not imported for that.
    """
    names = known(kind)
    if ":" in use:
        resolve(kind, use)
        return
    if use.endswith(".py"):
        raise ConfigError(f"'{use}' is a file; add :Class, the name of the class in it, as in {use}:MyClass")
    if use not in names:
        there = ", ".join(names) or "none"
        raise ConfigError(f"no {kind[:-1]} has the name '{use}'; there are {there}.{did_you_mean(use, names)}")
    if rivals := names[use].rivals:
        owners = " and ".join((names[use].distribution, *rivals))
        raise ConfigError(f"'{use}' is registered by {owners}; name the class itself, as in {names[use].target}")


def resolve(kind: Kind, use: str) -> type:
    """The class behind a name. Raises `ConfigError`; what a module raised while it was imported is its cause.

    A file that is not absolute is relative to the working directory; those of components and plugins were made
    absolute when the YAML was read.
    """
    target = use
    if ":" not in use:
        check_name(kind, use)
        target = known(kind)[use].target
    where, _, name = target.rpartition(":")
    module = load_module(where)
    found = getattr(module, name, None)
    if not isinstance(found, type):
        classes = [key for key, value in vars(module).items() if isinstance(value, type)]
        other = f", but an object of type {type(found).__name__}" if hasattr(module, name) else ""
        raise ConfigError(f"{where} has no class '{name}'{other}.{did_you_mean(name, classes)}")
    if kind == "plugins" and not issubclass(found, Plugin):
        raise ConfigError(f"{name} of {where} is no plugin: it must be a subclass of hooktrainer.Plugin")
    if kind == "sinks":
        _check_sink(found, where)
    elif "__attrs_attrs__" not in vars(found):
        raise ConfigError(f"{name} of {where} is no attrs class, so it has no options: write @attrs.define above it")
    return found


def _check_sink(found: type, where: str) -> None:
    """What would else break only when the run begins."""
    name = found.__name__
    lacks = [method for method in ("open", "write", "close") if not callable(getattr(found, method, None))]
    if lacks:
        raise ConfigError(f"{name} of {where} is no sink: it has no {', '.join(lacks)} (hooktrainer.ports.Sink)")
    try:
        signature = inspect.signature(found)
    except ValueError:  # of C, which does not say
        return
    try:
        signature.bind(Path(), None)
    except TypeError as error:
        takes = "(" + ", ".join(signature.parameters) + ")"
        text = f"a sink is made as {name}(directory, total_steps), but {name} of {where} takes {takes}"
        raise ConfigError(f"{text}: {error}. Let it take these two first, and give all others a default.") from error


def _owner(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else "an unnamed distribution"
