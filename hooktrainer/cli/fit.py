"""Train."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

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
    sys.stdout.flush()
    kept = f"kept in {os.path.relpath(config.run.dir / config.run.name)}"
    with _terminated_as_interrupted():
        trainer = build_trainer(config)
        try:
            result = trainer.fit()
        except BaseException:
            sys.stderr.write(f"{_steps(trainer.ports.buffer.version)} complete, {kept}\n")
            raise
    reason = f" ({result.reason})" if result.reason else ""
    sys.stdout.write(f"{result.status}{reason}: {_steps(result.step)} in {result.seconds:.1f} s, {kept}\n")
    return 0


def _steps(count: int) -> str:
    return "1 step" if count == 1 else f"{count} steps"


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """Let SIGTERM and SIGHUP take the clean path of Ctrl-C, and exit with 128 + their number; put back afterwards."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
