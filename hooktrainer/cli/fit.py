"""Train."""

from __future__ import annotations

import argparse
import os
import shlex
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from hooktrainer._util.signals import Interrupts, handled
from hooktrainer._util.streams import write_stderr, write_stdout
from hooktrainer.cli._config import add_config_arguments, load
from hooktrainer.errors import ConfigError

if TYPE_CHECKING:
    from hooktrainer.run.composition import Composition
    from hooktrainer.run.ranks import Leader, Place


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of a configuration."""
    add_config_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Compose the run, train, and print how it ended. A rank other than 0 follows rank 0 instead."""
    from hooktrainer.run.ranks import Place

    place = Place.of_environment()
    if place is not None and place.rank:
        with handled():
            _follow(args, place)
    return _lead(args, place)


def _follow(args: argparse.Namespace, place: Place) -> NoReturn:
    """Follow rank 0, which alone shows what all ranks find in the configuration."""
    from hooktrainer.run.build import build_learner
    from hooktrainer.run.ranks import follow, refuse

    try:
        composition = load(args, warns=False)
    except ConfigError as error:
        refuse(error, place)
    follow(composition, place, build_learner)


def _lead(args: argparse.Namespace, place: Place | None) -> int:
    if place is not None:
        # torchrun sends SIGTERM when a rank has ended: after the run, it must not hide why.
        signal.signal(signal.SIGTERM, lambda *_: None)
    with handled() as interrupts:
        try:
            composition = load(args)
            with _ranks(composition, place, args) as own:
                return _train(composition, own, interrupts)
        except Exception as error:
            if not interrupts.came_before_signals(error):  # otherwise a user's code turned the signal into an error
                interrupts.raise_it()
            raise


@contextmanager
def _ranks(composition: Composition, place: Place | None, args: argparse.Namespace) -> Iterator[Place | None]:
    """Start the other ranks, unless `torchrun` has; return the place of rank 0 among them. None for a single process.

    The configuration was read before, so that its faults are shown once.
    """
    ranks = composition.config.learner.ranks
    if place is not None:
        place.require(ranks)
        yield place
    elif ranks == 1:
        yield None
    else:
        from hooktrainer.cli import main
        from hooktrainer.run.launch import launched

        with launched(ranks, partial(main, ["fit", *args.config])) as first:
            yield first


def _train(composition: Composition, place: Place | None, interrupts: Interrupts) -> int:
    from hooktrainer.run.ranks import leading

    if place is None:
        return _fit(composition, None)
    with leading(composition, place, interrupts) as leader:
        return _fit(composition, leader)


def _fit(composition: Composition, leader: Leader | None) -> int:
    from hooktrainer.run.build import build_trainer, directory_of

    config = composition.config
    names = ", ".join(entry.name for entry in config.plugins if entry.enabled)
    directory = directory_of(config)
    trainer = build_trainer(composition, leader)
    ranks = "" if leader is None else f"ranks of the learner: {leader.followers.size}\n"
    write_stdout(f"plugins: {names or 'none'}\n{ranks}run directory: {directory}\n")
    kept = f"kept in {os.path.relpath(directory)}"
    try:
        result = trainer.fit()
    except BaseException as error:
        if not isinstance(error, Exception) and any(directory.glob("checkpoints/step_*")):
            kept = f"{kept}; resume with run.resume=auto"
        complete = trainer.ports.buffer.version
        known = complete or config.run.resume == "off"  # a resume may fail before the restored step is known
        made = f"{_steps(complete)} complete" if known else "no step was completed"
        write_stderr(f"{made}, {kept}\n{_report(directory) if complete else ''}")
        raise
    reason = f" ({result.reason})" if result.reason else ""
    steps = result.step - result.resumed_from
    numbers = f" ({result.resumed_from + 1} to {result.step})" if result.resumed_from and steps > 1 else ""
    made = f"{_steps(steps)}{numbers}"
    write_stdout(f"{result.status}{reason}: {made} in {result.seconds:.1f} s, {kept}\n")
    if result.dropped_sinks:
        write_stdout(f"sinks that failed and were dropped: {', '.join(result.dropped_sinks)}\n")
    write_stdout(_report(directory))
    return 0


def _report(directory: Path) -> str:
    """Return a line with the command that shows the run; empty without rows."""
    if not (directory / "metrics.jsonl").exists():
        return ""
    return f"report: hooktrainer report {shlex.quote(os.path.relpath(directory))}\n"


def _steps(count: int) -> str:
    return "1 step" if count == 1 else f"{count} steps"
