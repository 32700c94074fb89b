"""The directory of a run, `runs/<name>/`; what an earlier run left there is never overwritten."""

from __future__ import annotations

import itertools
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from hooktrainer.errors import ConfigError, Fault

_LOG: Final = logging.getLogger("hooktrainer")


def make_run_directory(directory: Path, files: dict[str, str]) -> None:
    """Make the directory with these files in it; an earlier one is renamed to `<name>.1`, or the next free number.

    Raises `ConfigError` if it cannot be made or written; nothing is renamed or left behind then.
    """
    parent = directory.parent
    fresh = parent / f".{directory.name}.new"
    try:
        parent.mkdir(parents=True, exist_ok=True)
        fresh.mkdir(exist_ok=True)
        for name, text in files.items():
            (fresh / name).write_text(text, encoding="utf-8")
        if directory.exists() or directory.is_symlink():
            kept = next(path for path in _numbered(directory) if not path.exists() and not path.is_symlink())
            directory.rename(kept)
            _LOG.warning("%s is from an earlier run; it is kept as %s", directory, kept.name)
        fresh.rename(directory)
    except OSError as error:
        shutil.rmtree(fresh, ignore_errors=True)
        text = f"the run directory {directory} cannot be made: {error.strerror} ({error.filename})."
        raise ConfigError([Fault("run", f"{text} Choose another with run.dir=... or run.name=...")]) from None


def _numbered(directory: Path) -> Iterator[Path]:
    return (directory.with_name(f"{directory.name}.{number}") for number in itertools.count(1))
