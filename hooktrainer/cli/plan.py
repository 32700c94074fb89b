"""Print for every signal its handlers in running order; starts nothing and imports no torch."""

from __future__ import annotations

import argparse
import sys

from hooktrainer.cli._config import add_config_arguments, load
from hooktrainer.errors import PlanError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """A configuration."""
    add_config_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Check everything that can be checked without running, and print the plan."""
    from hooktrainer.bus.plan_text import describe
    from hooktrainer.run.composition import build_parts

    plan = build_parts(load(args)).plan
    sys.stdout.write(describe(plan))
    try:
        plan.require_sync()
    except PlanError as error:
        sys.stderr.write(f"warning: `fit` refuses this run: {error}\n")
    return 0
