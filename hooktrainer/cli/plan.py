"""Print the handlers of every signal in running order; starts nothing, and imports no torch unless your files do."""

from __future__ import annotations

import argparse

from hooktrainer._util.streams import write_result, write_stderr
from hooktrainer.cli._config import add_config_arguments, load


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of a configuration."""
    add_config_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Print the plan, after every check that needs no run."""
    from hooktrainer.bus.plan_text import describe
    from hooktrainer.run.composition import require_runnable
    from hooktrainer.run.metric_names import unchecked_metrics

    composition = load(args)
    require_runnable(composition)
    for note in unchecked_metrics(composition.config, composition.plan, composition.task):
        write_stderr(f"note: {note}\n")
    write_result(describe(composition.plan))
    return 0
