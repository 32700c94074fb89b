"""Append to a file whose lines are complete, and keep copies of a file before lines are removed from it."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from hooktrainer._util import files


def append(path: Path, data: bytes) -> None:
    """Append complete lines and sync them to disk. After an error or an interrupt, the file is as it was."""
    whole = path.stat().st_size if path.exists() else 0
    try:
        with path.open("ab") as file:  # opened for each call, so that no handle can go stale
            file.write(data)
            file.flush()
            files.sync_file(file.fileno(), path)
    except BaseException:
        with suppress(OSError):  # the first error is raised
            os.truncate(path, whole)  # a full disk or an interrupt may leave part of a line
        raise


def set_aside(path: Path, data: bytes) -> Path:
    """Write the data of a file to a new file in the same folder, and return the new path."""
    names = (f"{path.name}.set_aside{suffix}" for suffix in ("", *(f".{n}" for n in range(1, 1000))))
    aside = next(other for other in map(path.with_name, names) if not other.exists())
    files.write(aside, data)
    return aside
