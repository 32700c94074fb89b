"""Files that are on the disk when a function returns, and names that change all at once."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path


def write(path: Path, data: bytes) -> None:
    """A new file with these bytes, on the disk."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(file, rest) :]
        os.fsync(file)
    finally:
        os.close(file)


def sync(path: Path) -> None:
    """Bring a file, or the names in a directory, to the disk."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def rename(path: Path, target: Path) -> None:
    """Give it another name, which is on the disk when this returns."""
    path.rename(target)
    sync(target.parent)


def replace(path: Path, data: bytes) -> None:
    """Put these bytes in place of what the file held; whoever reads it sees the one or the other."""
    fresh = path.with_name(f".{path.name}.new")
    write(fresh, data)
    fresh.replace(path)
    sync(path.parent)


def discard(path: Path) -> None:
    """Remove a file or a directory as far as possible."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()
