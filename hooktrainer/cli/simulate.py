"""Predict staleness, waste and waiting in virtual time, before training; imports no torch.

The text below the table explains its columns.
"""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager

from hooktrainer._util.streams import write_result
from hooktrainer.cli._config import add_config_arguments, load


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add a configuration, the durations, and the settings to vary."""
    add_config_arguments(parser)
    times = "SECONDS, lognormal:MEAN:SIGMA, or recorded:RUN_DIR for the times of a run"
    parser.add_argument(
        "--generate", metavar="TIME", default="lognormal:4:1", help=f"time of one group: {times} (default: %(default)s)"
    )
    parser.add_argument("--train", metavar="TIME", default="1", help="time of one update (default: 1)")
    parser.add_argument("--sync", metavar="TIME", default="0", help="time of one weight sync (default: 0)")
    parser.add_argument(
        "--thresholds", metavar="T,T", type=_counts, default=(), help="values of max_off_policy_threshold to compare"
    )
    parser.add_argument(
        "--workers",
        metavar="N,N",
        type=_counts,
        default=(),
        help="rollout workers to compare; with continuous batching each generates rollout.slots / rollout.n groups at "
        "once, otherwise one (default: rollout.workers)",
    )
    parser.add_argument("--steps", metavar="N", type=_count, default=200, help="steps of each run (default: 200)")
    parser.add_argument("--seed", type=_seed, help="seed of the times (default: that of the configuration)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")


def run(args: argparse.Namespace) -> int:
    """Simulate every setting and print a table; return 1 if no setting could be run."""
    from hooktrainer.simulation import Schedule, parse_distribution, sweep, table

    composition = load(args)
    schedule = Schedule(
        generate=parse_distribution(args.generate, "generate"),
        train=parse_distribution(args.train, "train"),
        sync=parse_distribution(args.sync, "sync"),
        seed=composition.config.seed if args.seed is None else args.seed,
    )
    with _quiet():
        rows = list(sweep(composition, schedule, steps=args.steps, thresholds=args.thresholds, workers=args.workers))
    times = {"generate": args.generate, "train": args.train, "sync": args.sync}
    if args.json:
        head = {**times, "steps": args.steps, "seed": schedule.seed}
        write_result(json.dumps({**head, "rows": table.as_json(rows)}, allow_nan=False) + "\n")
    else:
        seconds = ", ".join(f"{kind} {time}" for kind, time in times.items())
        write_result(f"{args.steps} steps, seed {schedule.seed}; {seconds}\n\n{table.as_text(rows)}\n{table.LEGEND}\n")
    return 0 if any(row.outcome for row in rows) else 1


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected an integer of at least 1, found {text!r}")
    return int(text)


def _counts(text: str) -> tuple[int, ...]:
    return tuple(map(_count, text.split(",")))


def _seed(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected an integer of at least 0, found {text!r}")
    return int(text)


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress warnings, since the table shows their causes."""
    logger = logging.getLogger("hooktrainer")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
