"""Train."""

from __future__ import annotations

import argparse
import os
import sys

from hooktrainer.cli._config import add_config_arguments, load


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """A configuration."""
    add_config_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Compose the run, train, and say how it ended."""
    config = load(args)
    from hooktrainer.compose import build_trainer

    names = ", ".join(entry.name for entry in config.plugins if entry.enabled)
    sys.stdout.write(f"plugins: {names or 'none'}\n")
    result = build_trainer(config).fit()
    reason = f" ({result.reason})" if result.reason else ""
    directory = os.path.relpath(config.run.dir / config.run.name)
    sys.stdout.write(f"{result.status}{reason}: {result.step} steps in {result.seconds:.1f} s, kept in {directory}\n")
    return 0
