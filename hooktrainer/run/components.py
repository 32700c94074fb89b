"""Build the objects that a configuration names: components, and the items of named ports such as sinks."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import attrs

from hooktrainer._util.registry import Kind
from hooktrainer.config import Use
from hooktrainer.config.conversion import convert, read_fields
from hooktrainer.config.faults import Faults
from hooktrainer.config.fields import Fields, init_fields, option_name
from hooktrainer.config.scalars import INVALID, EnvironmentText, Unread, holds
from hooktrainer.errors import Fault
from hooktrainer.plugin import Plugin, port_fields
from hooktrainer.ports import SupportsInstallCheck
from hooktrainer.run.registry import port_kind


def component(kind: Kind[type[Any]], use: Use | Unread, faults: Faults) -> Any:
    """Return an object of the class that `use` names; after a fault, an `Unread` with its readable fields."""
    if isinstance(use, Unread):
        return INVALID
    built: Any = INVALID
    with absorbing(faults):
        cls = kind.resolve(use.use)
        fields = init_fields(cls)
        built = read_fields(cls, fields, use.options, faults, use.use)
        settle_variables(use.options, built, fields)
    return built


def named_port(
    cls: type[Plugin], field: attrs.Attribute[Any], options: Mapping[str, object], faults: Faults
) -> tuple[Any, ...]:
    """Return the objects that a named port of a plugin lists, each by its name or as a mapping with `use`.

    Environment variables in `options` are replaced by their values.
    """
    key = option_name(field)
    value = options.get(key)
    given = value is not None
    if given and not isinstance(value, (list, tuple)):
        convert(value, tuple[str, ...], faults)  # adds the fault
        return ()
    items = [*cast("Any", value if given else field.default)]
    kind = None
    with absorbing(faults):
        kind = port_kind(cls, field)
    if kind is None:
        return ()
    uses = [_use(item, faults.at(index)) for index, item in enumerate(items)]
    found = [component(kind, use, faults.at(index)) for index, use in enumerate(uses)]
    names = [getattr(use, "use", None) for use in uses]
    for index, name in enumerate(names):
        if name is not None and name in names[:index]:
            faults.at(index).add(f"'{name}' is listed twice")
    if given and holds(value, EnvironmentText):
        cast("dict[str, object]", options)[key] = [_plain(use) for use in uses if isinstance(use, Use)]
    return tuple(made for made in found if not isinstance(made, Unread))


def package_faults(plugin: Plugin, address: str) -> Sequence[Fault]:
    """Return a fault for each object in the named ports of a plugin whose package is not installed."""
    faults = Faults(address)
    for field in port_fields(type(plugin), named=True):
        for index, item in enumerate(getattr(plugin, field.name)):
            with absorbing(faults.at(option_name(field)).at(index)):
                if isinstance(item, SupportsInstallCheck):
                    item.check_installed()
    return faults.found


def _use(item: object, faults: Faults) -> Use | Unread:
    return Use.from_plain({"use": item} if isinstance(item, str) else item, faults)


def _plain(use: Use) -> object:
    return {"use": use.use, **use.options} if use.options else use.use


@contextmanager
def absorbing(faults: Faults) -> Iterator[None]:
    """Turn an error of user code, such as a property of a task, into a fault."""
    try:
        yield
    except (Exception, SystemExit) as error:  # noqa: BLE001 (any error of user code)
        faults.absorb(error)


def settle_variables(options: Mapping[str, object], built: object, fields: Fields) -> None:
    """Replace the text of environment variables in options by the values of the object that was built."""
    for field in fields:
        key = option_name(field)
        if holds(options.get(key), EnvironmentText) and hasattr(built, field.name):
            value = getattr(built, field.name)
            cast("dict[str, object]", options)[key] = str(value) if isinstance(value, Path) else copy.deepcopy(value)
