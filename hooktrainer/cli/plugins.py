"""List the plugins, tasks, models, engines, sinks and sections of a configuration, with their options."""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Iterator
from typing import Final

from hooktrainer.errors import ConfigError, did_you_mean

_WIDTH: Final = 100
_SECTIONS: Final = "sections"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add an optional name."""
    parser.add_argument(
        "name",
        nargs="?",
        metavar="NAME",
        help="only this one; may be a section such as `trainer`, or `module:Class` or `file.py:Class` for a plugin",
    )


def run(args: argparse.Namespace) -> int:
    """Print one name, or all of them by group."""
    places = _all_places() if args.name is None else _places_of(args.name)
    group_before = None
    for group, name in places:
        if group != group_before:
            where = "keys of the YAML" if group == _SECTIONS else f"entry points hooktrainer.{group}"
            sys.stdout.write(f"{group} ({where})\n")
        group_before = group
        sys.stdout.write("\n".join(_lines(group, name)) + "\n\n")
    return 0


def _all_places() -> list[tuple[str, str]]:
    from hooktrainer.config.sections import section_classes
    from hooktrainer.run import registry

    named = [(kind, name) for kind, names in registry.KINDS.items() for name in names]
    return [*named, *((_SECTIONS, name) for name in section_classes())]


def _places_of(requested: str) -> list[tuple[str, str]]:
    """Return the groups that have a name. Raises `ConfigError` if none has it, or its class cannot be used."""
    places = _all_places()
    chosen = [(group, name) for group, name in places if name == requested]
    if ":" in requested or requested.endswith(".py"):
        chosen = [("plugins", requested)]
    if not chosen:
        names = sorted({name for _, name in places})
        near = did_you_mean(requested, names)
        raise ConfigError(f"nothing has the name '{requested}'; there are {', '.join(names)}.{near}")
    for group, name in chosen:
        _class_of(group, name)
    return chosen


def _class_of(group: str, name: str) -> type:
    from hooktrainer.config.sections import section_classes
    from hooktrainer.run import registry

    if group == _SECTIONS:
        return section_classes()[name]
    return registry.KINDS[group].resolve(name)


def _lines(group: str, name: str) -> Iterator[str]:
    from hooktrainer.run.option_docs import options_of, summary

    try:
        cls = _class_of(group, name)
    except ConfigError as error:
        yield f"  {name}: cannot be used: {error}"
        return
    yield from _wrapped(f"{name}: {summary(cls)}", "  ")
    for option in options_of(cls) if group != "sinks" else ():  # a sink takes no options in YAML
        yield f"      {option.name}: {option.type}" + (f" = {option.default}" if option.default else "  (required)")
        yield from _wrapped(option.doc, "          ")


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(" ".join(text.split()), _WIDTH, initial_indent=indent, subsequent_indent=indent)
