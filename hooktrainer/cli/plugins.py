"""List what YAML can name: plugins, tasks, models, engines and sinks, with their options."""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING

from hooktrainer.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from hooktrainer.registry import Group

_WIDTH = 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """An optional name."""
    parser.add_argument(
        "name", nargs="?", metavar="NAME", help="only this one; `module:Class` or `file.py:Class` for a plugin"
    )


def run(args: argparse.Namespace) -> int:
    """Print one name, or all of them by group."""
    from hooktrainer import registry

    places = [(group, name) for group in registry.GROUPS for name in registry.known(group)]
    if args.name is not None:
        chosen = [(group, name) for group, name in places if name == args.name]
        if ":" in args.name:
            registry.resolve("plugins", args.name)
            chosen = [("plugins", args.name)]
        if not chosen:
            names = sorted({name for _, name in places})
            raise ConfigError(
                f"nothing has the name '{args.name}'; there are {', '.join(names)}.{did_you_mean(args.name, names)}"
            )
        places = chosen
    group_before = None
    for group, name in places:
        if group != group_before:
            sys.stdout.write(f"{group}\n")
        group_before = group
        sys.stdout.write("\n".join(_lines(group, name)) + "\n\n")
    return 0


def _lines(group: Group, name: str) -> Iterator[str]:
    from hooktrainer import registry
    from hooktrainer.options import options_of, summary

    try:
        cls = registry.resolve(group, name)
    except ConfigError as error:
        yield f"  {name}: cannot be used: {error}"
        return
    yield from _wrapped(f"{name}: {summary(cls)}", "  ")
    for option in options_of(cls) if group != "sinks" else ():  # sinks are named, and told nothing
        yield f"      {option.name}: {option.type}" + (f" = {option.default}" if option.default else "  (required)")
        yield from _wrapped(option.doc, "          ")


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(" ".join(text.split()), _WIDTH, initial_indent=indent, subsequent_indent=indent)
