"""Durable file operations: data and names are on the disk when a function returns."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path


def write(path: Path, data: bytes) -> None:
    """Write a file and sync it to the disk."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(file, rest) :]
        os.fsync(file)
    finally:
        os.close(file)


def sync(path: Path) -> None:
    """Sync a file, or the names in a directory, to the disk."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def rename(path: Path, target: Path) -> None:
    """Rename a file or a directory, and sync the new name to the disk."""
    path.rename(target)
    sync(target.parent)


def replace(path: Path, data: bytes) -> None:
    """Replace the content of a file atomically: a reader sees the old content or the new one."""
    fresh = path.with_name(f".{path.name}.new")
    write(fresh, data)
    fresh.replace(path)
    sync(path.parent)


def discard(path: Path) -> None:
    """Remove a file or a directory, and ignore errors."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()
