"""Ask a run to end after its last complete step, as Ctrl-C does, and wait until it has ended."""

from __future__ import annotations

import argparse
import os
import signal
import time
from typing import Final

from hooktrainer._util.streams import write_result, write_stderr
from hooktrainer.cli._run import add_run_argument, found_run
from hooktrainer.errors import ConfigError

_POLL_S: Final = 0.1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the run."""
    add_run_argument(parser)
    parser.add_argument(
        "--timeout",
        type=float,
        default=120.0,
        metavar="SECONDS",
        help="longest wait for the end (default: %(default)g)",
    )


def run(args: argparse.Namespace) -> int:
    """Send SIGTERM to the process of the run, and print how the run ended; 1 if it has not ended in time."""
    directory, record = found_run(args.directory)
    start = record.starts[-1]
    if not start.is_local and start.end is None:
        raise ConfigError(f"{directory} is a run on {start.host}; call `hooktrainer stop` there")
    if not start.is_active:
        write_result(f"{directory} is not running\n")
        return 0
    try:
        os.kill(start.pid, signal.SIGTERM)
    except PermissionError:
        raise ConfigError(f"process {start.pid} of {directory} belongs to another user, and cannot be asked") from None
    write_stderr(f"asked process {start.pid} to end\n")
    deadline = time.monotonic() + args.timeout
    while start.is_active:
        if time.monotonic() > deadline:
            write_stderr(
                f"{directory} has not ended after {args.timeout:g} s; `kill -9 {start.pid}` would lose its step\n"
            )
            return 1
        time.sleep(_POLL_S)
    _, record = found_run(directory)
    end = record.starts[-1].end
    how = f"{end['status']}, step {end['step']}" if end else "its end is not recorded"
    write_result(f"{directory} ended: {how}\n")
    return 0
