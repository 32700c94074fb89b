"""Arguments of the commands that read a configuration."""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hooktrainer._util.streams import write_stderr

if TYPE_CHECKING:
    from hooktrainer.run.composition import Composition


def add_config_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `CONFIG [CONFIG ...] [key=value ...] [--with PLUGIN]`."""
    parser.add_argument(
        "config",
        nargs="+",
        metavar="CONFIG | key=value",
        help="YAML files, of which later ones win, and overrides such as trainer.total_steps=10, "
        "plugins.staleness.max_off_policy_threshold=2 (by name) or plugins.0.every=5 (by index); in files and "
        "overrides, a mapping is merged with the earlier one, {} clears it, and a list replaces the earlier one; "
        "file.py:Name in an override is relative to the working directory, as all paths are; "
        "key+=value appends to a list",
    )
    parser.add_argument(
        "--with",
        dest="added",
        action="append",
        default=[],
        metavar="PLUGIN",
        help="add a plugin that the files lack, by its name or as file.py:Class; plugins.PLUGIN.key=value sets one of "
        "its options, and adds it, too",
    )


def _is_file(argument: str) -> bool:
    try:
        return Path(argument).exists()
    except (OSError, ValueError):  # too long for a path
        return False


def split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the files and the overrides among the arguments."""
    overrides = [argument for argument in arguments if "=" in argument and not _is_file(argument)]
    return [argument for argument in arguments if argument not in overrides], overrides


def overrides_meant(unknown: Sequence[str], arguments: Sequence[str], config: Sequence[str]) -> list[str]:
    """Return the overrides that unknown arguments in the style `--name value` mean."""
    from hooktrainer.run import loading

    files, overrides = [argument for argument in config if _is_file(argument)], []
    for flag in dict.fromkeys(argument for argument in unknown if argument.startswith("-") or "=" in argument):
        bare, equals, value = flag.lstrip("-").partition("=")
        path = loading.path_of_option(bare.replace("-", "_"), files)
        if not equals and path:
            value = _value_after(flag, arguments)
        if path or equals:
            overrides.append(f"{path or bare}={value}")
    return overrides


def _value_after(flag: str, arguments: Sequence[str]) -> str:
    """Return the argument after a flag; "true" for a flag without one."""
    following = [*arguments[arguments.index(flag) + 1 :][:1]] if flag in arguments else []
    return next((each for each in following if not each.startswith("--") and not _is_file(each)), "true")


def load(args: argparse.Namespace, *, warns: bool = True) -> Composition:
    """Compose the run that the arguments describe; with `warns`, print warnings to standard error, each once."""
    from hooktrainer.run import loading

    files, overrides = split(args.config)
    overrides = [*(f"plugins+={name}" for name in getattr(args, "added", ())), *overrides]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", loading.ConfigWarning)
        composition = loading.load(*files, overrides=overrides)
    for warning in caught if warns else ():
        write_stderr(f"warning: {warning.message}\n")
    return composition
