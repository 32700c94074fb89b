"""The arguments of every command that reads a configuration."""

from __future__ import annotations

import argparse
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hooktrainer.config import Config


def add_config_arguments(parser: argparse.ArgumentParser) -> None:
    """`CONFIG [CONFIG ...] [key=value ...]`."""
    parser.add_argument(
        "config",
        nargs="+",
        metavar="CONFIG | key=value",
        help="YAML files, later ones on top, and overrides such as trainer.total_steps=10, "
        "plugins.staleness.max_off_policy_threshold=2 (by name) or plugins.0.every=5 (by place)",
    )


def _is_file(argument: str) -> bool:
    try:
        return Path(argument).exists()
    except (OSError, ValueError):  # longer than a path can be
        return False


def load(args: argparse.Namespace) -> Config:
    """The configuration that the arguments describe; warnings go to standard error, once each."""
    from hooktrainer.run.loading import ConfigWarning, load_config

    overrides = [argument for argument in args.config if "=" in argument and not _is_file(argument)]
    files = [argument for argument in args.config if argument not in overrides]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConfigWarning)
        config = load_config(*files, overrides=overrides)
    for warning in caught:
        sys.stderr.write(f"warning: {warning.message}\n")
    return config
