"""Write an HTML page about one or several runs: scores, curves, staleness, timings, settings and samples."""

from __future__ import annotations

import argparse
import webbrowser
from pathlib import Path
from typing import Final

from hooktrainer._util.streams import write_result, write_stderr
from hooktrainer.cli._run import latest_run
from hooktrainer.errors import ConfigError

_NAME: Final = "report.html"
_HEAD: Final = 2000
"""Bytes at the start of a page that name its generator."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the runs, and where the page is written."""
    parser.add_argument(
        "directories",
        metavar="RUN",
        nargs="*",
        type=Path,
        help="run directories, such as runs/quickstart; the run in `runs` that was started last if left out. "
        "Several are overlaid; those that differ only in their seed are one curve with its range",
    )
    parser.add_argument(
        "--output",
        metavar="FILE",
        type=Path,
        help=f"the page (default: RUN/{_NAME}; with several runs, {_NAME} in the working directory)",
    )
    parser.add_argument("--open", action="store_true", help="open the page in the browser")


def run(args: argparse.Namespace) -> int:
    """Write the page, and print its path."""
    from hooktrainer.run.history import RunHistory
    from hooktrainer.run.report.page import page_of

    directories = list(dict.fromkeys(args.directories)) or [latest_run("report")]
    output = args.output or (directories[0] / _NAME if len(directories) == 1 else Path(_NAME))
    _check(output)
    page = page_of([RunHistory.read(directory) for directory in directories])
    _write(output, page)
    write_result(f"{output}\n")
    if args.open and not webbrowser.open(output.absolute().as_uri()):
        write_stderr(f"no browser was found; open {output.absolute()}\n")
    return 0


def _check(output: Path) -> None:
    """Raise `ConfigError` if the page would replace another file."""
    from hooktrainer.run.report.page import GENERATOR

    if output.is_dir():
        raise ConfigError(f"--output {output} is a directory; name a file, such as {output / _NAME}")
    try:
        with output.open("rb") as file:
            ours = f'content="{GENERATOR}"'.encode() in file.read(_HEAD)
    except OSError:  # there is none, or writing it fails with a reason
        return
    if not ours:
        raise ConfigError(f"{output} exists and is not a report; choose another file with --output")


def _write(output: Path, page: str) -> None:
    from hooktrainer._util.files import replace

    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        replace(output, page.encode("utf-8", errors="replace"))
    except OSError as error:
        raise ConfigError(
            f"the report cannot be written to {output}: {error.strerror}; choose another file with --output"
        ) from None
