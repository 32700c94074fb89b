"""List what YAML can name: plugins, tasks, models, engines and sinks, with their options."""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING

from hooktrainer.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from hooktrainer.config.registry import Kind

_WIDTH = 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """An optional name."""
    parser.add_argument(
        "name", nargs="?", metavar="NAME", help="only this one; `module:Class` or `file.py:Class` for a plugin"
    )


def run(args: argparse.Namespace) -> int:
    """Print one name, or all of them by kind."""
    from hooktrainer.config import registry

    places = [(kind, name) for kind in registry.KINDS for name in registry.known(kind)]
    if args.name is not None:
        chosen = [(kind, name) for kind, name in places if name == args.name]
        if ":" in args.name:
            registry.resolve("plugins", args.name)
            chosen = [("plugins", args.name)]
        if not chosen:
            names = sorted({name for _, name in places})
            raise ConfigError(
                f"nothing has the name '{args.name}'; there are {', '.join(names)}.{did_you_mean(args.name, names)}"
            )
        places = chosen
    kind_before = None
    for kind, name in places:
        if kind != kind_before:
            sys.stdout.write(f"{kind}\n")
        kind_before = kind
        sys.stdout.write("\n".join(_lines(kind, name)) + "\n\n")
    return 0


def _lines(kind: Kind, name: str) -> Iterator[str]:
    from hooktrainer.config import registry
    from hooktrainer.config.option_docs import options_of, summary

    try:
        cls = registry.resolve(kind, name)
    except ConfigError as error:
        yield f"  {name}: cannot be used: {error}"
        return
    yield from _wrapped(f"{name}: {summary(cls)}", "  ")
    for option in options_of(cls) if kind != "sinks" else ():  # sinks are named, and told nothing
        yield f"      {option.name}: {option.type}" + (f" = {option.default}" if option.default else "  (required)")
        yield from _wrapped(option.doc, "          ")


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(" ".join(text.split()), _WIDTH, initial_indent=indent, subsequent_indent=indent)
