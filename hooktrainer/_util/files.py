"""Durable file operations: data and names are on the disk when a function returns.

A network file system may lack a call, such as the sync of a directory. The operation then continues without it, and a
warning names the consequence.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

_LOG: Final = logging.getLogger("hooktrainer")
_UNSUPPORTED: Final = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOTTY)
_NO_REPLACE: Final = (*_UNSUPPORTED, errno.EEXIST, errno.EPERM, errno.EACCES, errno.EXDEV)
_warned: set[str] = set()


def write(path: Path, data: bytes) -> None:
    """Write a file and sync it to the disk."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(file, rest) :]
        sync_file(file, path)
    finally:
        os.close(file)


def sync(path: Path) -> None:
    """Sync a file, or the names in a directory, to the disk."""
    try:
        file = os.open(path, os.O_RDONLY)
    except (IsADirectoryError, PermissionError) as error:
        if not path.is_dir():
            raise
        warn_unsupported("a directory cannot be synced", path, error)
        return
    try:
        sync_file(file, path)
    finally:
        os.close(file)


def sync_file(file: int, path: Path) -> None:
    """Sync an open file or directory to the disk."""
    try:
        os.fsync(file)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        warn_unsupported("files cannot be synced", path, error)


def warn_unsupported(what: str, path: Path, error: OSError) -> None:
    """Log once that the file system lacks a call."""
    text = f"%s: {what} on this file system (%s); after a power failure the newest files may be missing"
    warn_once(text, path, error.strerror)


def warn_once(text: str, *arguments: object) -> None:
    """Log a warning, unless one with this text was logged before."""
    if text not in _warned:
        _warned.add(text)
        _LOG.warning(text, *arguments)


def set_mode(path: Path, mode: int) -> None:
    """Set the permissions of a file; keep those that it has where the file system has none."""
    with suppress(OSError):
        path.chmod(mode)


def rename(path: Path, target: Path) -> None:
    """Rename a file or a directory, and sync the new name to the disk."""
    path.rename(target)
    sync(target.parent)


def replace(path: Path, data: bytes) -> None:
    """Replace the content of a file atomically: a reader sees the old content or the new one."""
    replace_all(path.parent, {path.name: data})


def replace_all(directory: Path, files: Mapping[str, bytes]) -> None:
    """Replace the content of files in a directory. All are written before the first one is replaced."""
    fresh = {name: directory / f".{name}.new" for name in files}
    try:
        for name, data in files.items():
            write(fresh[name], data)
        for name, data in files.items():
            _replace(fresh[name], directory / name, data)
    finally:
        for path in fresh.values():
            with suppress(OSError):
                path.unlink()
    sync(directory)


def _replace(fresh: Path, path: Path, data: bytes) -> None:
    try:
        fresh.replace(path)
    except OSError as error:
        if error.errno not in _NO_REPLACE or path.is_dir():
            raise
        warn_unsupported("a file cannot be replaced at once", path, error)
        write(path, data)


def discard(path: Path) -> None:
    """Remove a file or a directory, and ignore errors."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()
