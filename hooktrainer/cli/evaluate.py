"""Print the validation figures of a trained model, on the held-out prompts of a configuration."""

from __future__ import annotations

import argparse
import json

from hooktrainer._util.streams import write_result
from hooktrainer.cli._config import add_config_arguments, load
from hooktrainer.cli._trained import add_model_argument, trained_model


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the model, and the arguments of a configuration."""
    add_model_argument(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_config_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Print what the validation of the configuration would report for these weights."""
    composition = load(args)
    from hooktrainer.run.inference import validation_figures

    figures = validation_figures(trained_model(args), composition)
    lines = [json.dumps(dict(figures))] if args.json else [f"{name}: {value}" for name, value in figures.items()]
    write_result("".join(f"{line}\n" for line in lines))
    return 0
