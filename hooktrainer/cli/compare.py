"""Train configurations with several seeds, or read existing runs, and print a table of their final scores.

An argument is a configuration, a study, a run directory, or an override for everything that is trained. A study is a
YAML file with `runs`, a mapping of names to `configs` (files, of which later ones override earlier ones) and
`overrides`. Every run is a separate process. Complete runs are not repeated, unless their command or a configuration
file changed.
"""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hooktrainer._util.streams import write_result, write_stderr
from hooktrainer.cli._config import split
from hooktrainer.errors import ConfigError

if TYPE_CHECKING:
    from hooktrainer.run.history import RunHistory
    from hooktrainer.run.report.groups import Group
    from hooktrainer.run.report.studies import Variant

_RUNS: Final = Path("runs", "compare")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add configurations, seeds, and where runs and the figure are written."""
    parser.add_argument("config", nargs="+", metavar="STUDY | CONFIG | RUN | key=value", help="see above")
    parser.add_argument("--seeds", type=_seed, nargs="+", default=[0, 1, 2], metavar="N", help="default: 0 1 2")
    parser.add_argument("--jobs", type=_count, default=1, metavar="N", help="runs at a time (default: 1)")
    parser.add_argument("--runs", type=Path, metavar="DIR", help=f"where runs are kept (default: {_RUNS}/NAME)")
    parser.add_argument(
        "--metric", help="metric of the table and the figure (default: val/score/mean, or critic/score/mean)"
    )
    parser.add_argument("--figure", type=Path, metavar="FILE", help="draw the curves into this file (.svg, .png, .pdf)")


def run(args: argparse.Namespace) -> int:
    """Train the runs that are missing, and print the table."""
    from hooktrainer.run.history import RunHistory
    from hooktrainer.run.report.comparison import draw, metric_of, require_plots, table
    from hooktrainer.run.report.groups import grouped

    if args.figure:
        require_plots()
    names, overrides = split(args.config)
    directories = [Path(name) for name in dict.fromkeys(names) if Path(name).is_dir()]
    existing = grouped([RunHistory.read(directory) for directory in directories])
    files = [Path(name) for name in dict.fromkeys(names) if not Path(name).is_dir()]
    groups = [*existing, *(_trained(args, files, overrides) if files or not existing else ())]
    if overrides and not files:
        raise ConfigError(f"{overrides[0]} has no effect: runs that exist are not trained again")
    metric = metric_of(groups, args.metric)
    write_result(f"{table(groups, metric)}\n")
    if args.figure:
        draw(groups, metric, args.figure)
        write_stderr(f"drawn: {args.figure}\n")
    write_stderr(f"report: hooktrainer report {_paths(groups)}\n")
    return 0


def _trained(args: argparse.Namespace, files: Sequence[Path], overrides: Sequence[str]) -> list[Group]:
    from hooktrainer.run.report.studies import check, read_variants
    from hooktrainer.run.report.training import Training

    if not files:
        raise ConfigError("there is nothing to compare: name a study, configurations or run directories")
    variants = read_variants(files, overrides)
    check(variants, args.seeds)
    directory = (args.runs or _RUNS / files[0].stem).resolve()
    return Training(directory, _report).train_all(variants, list(dict.fromkeys(args.seeds)), args.jobs)


def _report(variant: Variant, seed: int, run: RunHistory) -> None:
    from hooktrainer.run.report.headline import headline_of

    head = headline_of(run)
    score = "no score" if head.last is None else f"{head.last:.3f}"
    write_stderr(f"{variant.name}, seed {seed}: {score} after {head.duration}\n")


def _paths(groups: Sequence[Group]) -> str:
    return " ".join(shlex.quote(os.path.relpath(run.directory)) for group in groups for run in group.runs)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected an integer of at least 1, found {text!r}")
    return int(text)


def _seed(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected an integer of at least 0, found {text!r}")
    return int(text)
