"""The kinds of class that a configuration names, and the checks of such a class.

Short names come from the entry points of installed distributions; the built-in classes are registered the same way.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any, Final

from hooktrainer._util.registry import FILE, NAMES_A, Kind, check_method
from hooktrainer.config.fields import Fields, field_type, init_fields, option_name
from hooktrainer.errors import ConfigError
from hooktrainer.plugin import Plugin, option_fields, port_fields
from hooktrainer.ports import STRATEGIES, Sink, missing_methods, step_key_fault


def _check_options(found: type, where: str) -> None:
    if "__attrs_attrs__" not in vars(found):
        text = f"{found.__name__} of {where} is not an attrs class, so it has no options: write @attrs.define above it"
        raise ConfigError(text)


def _require_methods(found: type, where: str, noun: str, methods: tuple[str, ...], hint: str = "") -> None:
    """Raise `ConfigError` if a class lacks a method of its port."""
    if lacks := [method for method in methods if not callable(getattr(found, method, None))]:
        raise ConfigError(f"{found.__name__} of {where} is not {noun}: it has no {', '.join(lacks)}{hint}")


def _check_methods(noun: str, *methods: str) -> Callable[[Any, str], None]:
    """Return a check that a class has the methods of its port, and options."""

    def check(found: type, where: str) -> None:
        _require_methods(found, where, noun, methods)
        _check_options(found, where)

    return check


def _check_plugin(found: type, where: str) -> None:
    if not issubclass(found, Plugin):
        raise ConfigError(f"{found.__name__} of {where} is not a plugin: it must be a subclass of hooktrainer.Plugin")
    _check_options(found, where)


def _check_task(found: type, where: str) -> None:
    if lacks := missing_methods(found):
        raise ConfigError(f"{found.__name__} of {where} is not a task: it has no {lacks} (hooktrainer.ports.Task)")
    _check_options(found, where)


def _check_sink(found: type, where: str) -> None:
    _require_methods(found, where, "a sink", tuple(_SINK_METHODS), " (hooktrainer.ports.Sink)")
    if fault := step_key_fault(found):
        raise ConfigError(fault)
    _check_options(found, where)
    for name, parameters in {**_SINK_METHODS, **_OPTIONAL}.items():
        if callable(method := getattr(found, name, None)):
            check_method(method, f"{found.__name__} of {where}", "sink", name, *parameters)


_OPTIONAL: Final = {"rewind": ("step",), "write_iteration": ("iteration", "row")}
_SINK_METHODS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {"open": ("run",), "write": ("step", "row"), "close": ("status",)}
)


def _kind(noun: str, check: Callable[[Any, str], None] = _check_options) -> Kind[type[Any]]:
    return Kind(noun, group=f"hooktrainer.{noun}s", check=check)


PLUGINS: Final = _kind("plugin", _check_plugin)
TASKS: Final = _kind("task", _check_task)
MODELS: Final = _kind("model", _check_methods("a model", "tokenizer", "build"))
ENGINES: Final = _kind("engine", _check_methods("an engine", "build"))
SINKS: Final = _kind("sink", _check_sink)

KINDS: Final[Mapping[str, Kind[type[Any]]]] = MappingProxyType(
    {
        "plugins": PLUGINS,
        "tasks": TASKS,
        "models": MODELS,
        "engines": ENGINES,
        "sinks": SINKS,
        "strategies": STRATEGIES,
    }
)
"""The kinds of class by their plural, which also ends the name of their entry-point group."""

KIND_OF_SECTION: Final[Mapping[str, Kind[type[Any]]]] = MappingProxyType(
    {"task": TASKS, "model": MODELS, "rollout": ENGINES, "plugins": PLUGINS}
)
"""The kind of class that `use` names in each section."""

_KIND_OF_PORT: Final[Mapping[object, Kind[type[Any]]]] = {Sink: SINKS}


def settable_fields(cls: type) -> Fields:
    """Return the fields that YAML can set: the options of a class, and the named ports of a plugin."""
    return option_fields(cls) if issubclass(cls, Plugin) else init_fields(cls)


def port_kind(cls: type[Plugin], field: Any) -> Kind[type[Any]] | None:
    """Return the kind that a named port lists names of. Raises `ConfigError` for a type that cannot be read."""
    return _KIND_OF_PORT.get(next(iter(typing.get_args(field_type(cls, field))), None))


def naming_options(section: str, use: str) -> frozenset[str]:
    """Return the options of a class whose values are names or files; none if the class cannot be resolved."""
    with suppress(Exception):  # reported when the class is used
        cls = KIND_OF_SECTION[section].resolve(use)
        ports = port_fields(cls, named=True) if issubclass(cls, Plugin) else ()
        named = [field for field in settable_fields(cls) if field.metadata.keys() & {NAMES_A, FILE}]
        return frozenset(option_name(field) for field in (*ports, *named))
    return frozenset()


def option_paths(classes: Mapping[str, str]) -> dict[str, str]:
    """Return the full path of every option of the classes at some addresses; classes that cannot be read have none.

    The addresses are keys of a configuration, such as `task` or `plugins.staleness`.
    """
    paths: dict[str, str] = {}
    for address, use in classes.items():
        with suppress(Exception):  # reported when the class is used
            for field in settable_fields(KIND_OF_SECTION[address.partition(".")[0]].resolve(use)):
                paths.setdefault(option_name(field), f"{address}.{option_name(field)}")
    return paths
