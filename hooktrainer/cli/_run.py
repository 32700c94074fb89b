"""The argument of the commands that inspect a run directory."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hooktrainer.errors import ConfigError

if TYPE_CHECKING:
    from hooktrainer.run.record import RunRecord

_RUNS: Final = Path("runs")


def add_run_argument(parser: argparse.ArgumentParser) -> None:
    """Add `RUN`."""
    text = "a run directory, such as runs/quickstart; the run in `runs` that was started last if left out"
    parser.add_argument("directory", metavar="RUN", nargs="?", type=Path, help=text)


def found_run(directory: Path | None) -> tuple[Path, RunRecord]:
    """Return the directory and the record of a run. Raises `ConfigError` if there is none."""
    from hooktrainer.run.record import FILE, RunRecord

    if directory is None:
        directory = latest_run("status")
    if not directory.is_dir():
        raise ConfigError(f"there is no directory {directory}. Name a run directory, such as runs/quickstart")
    try:
        return directory, RunRecord.read(directory)
    except FileNotFoundError:
        raise ConfigError(f"{directory} has no {FILE}, so it is not the directory of a run") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"the record of the run cannot be read: {error}") from None


def latest_run(command: str) -> Path:
    """Return the directory of the run in `runs` that was started last. Raises `ConfigError` if there is none."""
    from hooktrainer.run.record import FILE

    records = sorted(_RUNS.glob(f"*/{FILE}"), key=lambda path: path.stat().st_mtime)
    if not records:
        raise ConfigError(f"there is no run in {_RUNS.absolute()}. Name a run directory: hooktrainer {command} RUN")
    return records[-1].parent
