"""List the names that YAML accepts: plugins, components, strategies, functions and sections, with their options."""

from __future__ import annotations

import argparse
import inspect
import textwrap
from collections.abc import Iterable, Iterator
from typing import Final

from hooktrainer._util.imports import described
from hooktrainer._util.streams import write_result
from hooktrainer.errors import ConfigError, Fault, did_you_mean

_WIDTH: Final = 100
_SECTIONS: Final = "sections"
_WITHOUT_OPTIONS: Final = ("strategies",)
"""Groups whose constructor arguments are set by hooktrainer and not by YAML."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add an optional name."""
    parser.add_argument(
        "name",
        nargs="?",
        metavar="NAME",
        help="print only this name: a registered one, a section such as `trainer`, or the `module:Class` or "
        "`file.py:Class` of a plugin, task, model, engine, sink or strategy",
    )


def run(args: argparse.Namespace) -> int:
    """Print one name, or all of them by group."""
    places = _all_places() if args.name is None else _places_of(args.name)
    group_before = None
    for group, name in places:
        if group != group_before:
            write_result(f"{group} ({_where(group)})\n")
        group_before = group
        write_result("\n".join(_lines(group, name)) + "\n\n")
    return 0


def _all_places() -> list[tuple[str, str]]:
    """Return all pairs of a group and a name in it."""
    from hooktrainer.algorithms.registry import FUNCTIONS
    from hooktrainer.config.sections import section_classes
    from hooktrainer.run.registry import KINDS

    groups: dict[str, Iterable[str]] = {**KINDS, **FUNCTIONS, _SECTIONS: section_classes()}
    return [(group, name) for group, names in groups.items() for name in names]


def _places_of(requested: str) -> list[tuple[str, str]]:
    """Return the groups that have a name. Raises `ConfigError` if none has it, or its class cannot be used."""
    places = _all_places()
    chosen = [(group, name) for group, name in places if name == requested]
    if ":" in requested or requested.endswith(".py"):
        chosen = [(_group_of(requested), requested)]
    if not chosen:
        names = sorted({name for _, name in places})
        near = did_you_mean(requested, names)
        raise ConfigError(f"nothing has the name '{requested}'; there are {', '.join(names)}.{near}")
    for group, name in chosen:
        try:
            list(_lines(group, name))
            _summary(group, name)
        except ConfigError:
            raise
        except Exception as error:  # of a class of the user
            raise ConfigError(f"{name} cannot be read: {described(error)}") from error
    return chosen


def _group_of(requested: str) -> str:
    """Return the group of the class in a module or file. Raises `ConfigError` if it fits none."""
    from hooktrainer.run.registry import KINDS

    refused: dict[str, ConfigError] = {}
    for group, kind in KINDS.items():
        try:
            cls = kind.resolve(requested)
        except Exception as error:  # noqa: BLE001 (any error of a class of the user)
            fault = f"{requested} cannot be read: {described(error)}"
            refused[group] = error if isinstance(error, ConfigError) else ConfigError(fault)
            continue
        if group == "models" and "policy" in inspect.signature(cls.build).parameters:
            continue  # an engine has a method `build`, too, which makes it from a policy
        return group
    if len({str(error) for error in refused.values()}) == 1:
        raise refused["plugins"]
    raise ConfigError([Fault("", str(error)) for error in refused.values()])


def _where(group: str) -> str:
    from hooktrainer.algorithms.registry import FUNCTIONS

    if group in FUNCTIONS:
        return "functions that this key of the section algorithm names"
    return "keys of the YAML" if group == _SECTIONS else f"entry points hooktrainer.{group}"


def _summary(group: str, name: str) -> tuple[str, type | None]:
    """Return the first paragraph about a name, and its class. A function has none: its module may import torch."""
    from hooktrainer.algorithms.registry import FUNCTIONS
    from hooktrainer.config.sections import section_classes
    from hooktrainer.run.option_docs import function_summary, summary
    from hooktrainer.run.registry import KINDS

    if group in FUNCTIONS:
        return function_summary(FUNCTIONS[group][name].target), None
    cls = section_classes()[name] if group == _SECTIONS else KINDS[group].resolve(name)
    return summary(cls), cls


def _lines(group: str, name: str) -> Iterator[str]:
    from hooktrainer.run.option_docs import options_of

    try:
        text, cls = _summary(group, name)
    except ConfigError as error:
        yield f"  {name}: cannot be used: {error}"
        return
    yield from _wrapped(f"{name}: {text}", "  ")
    for option in options_of(cls) if cls is not None and group not in _WITHOUT_OPTIONS else ():
        yield f"      {option.name}: {option.type}" + (f" = {option.default}" if option.default else "  (required)")
        yield from _wrapped(option.doc, "          ")


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(" ".join(text.split()), _WIDTH, initial_indent=indent, subsequent_indent=indent)
