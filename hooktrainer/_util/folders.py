"""Replace a folder as a whole: a reader, also after a crash, sees the old folder, the new one or none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hooktrainer._util import files


def replace_folder(folder: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a new folder, and put it in the place of `folder` once it is synced to the disk.

    After an error the earlier folder is unchanged, and the remains are removed.
    """
    fresh, before = folder.with_name(f".{folder.name}.unfinished"), folder.with_name(f".{folder.name}.replaced")
    restore_folder(folder)
    files.discard(fresh)
    try:
        fresh.mkdir()
        write(fresh)
        for path in (*fresh.rglob("*"), fresh):
            if path.is_file():  # some libraries write files that only the user may read
                files.set_mode(path, fresh.stat().st_mode & 0o666)
            files.sync(path)
        _publish(fresh, folder, before)
    finally:
        files.discard(fresh)
    files.discard(before)


def restore_folder(folder: Path) -> None:
    """Restore the earlier folder if a crash came between its removal and the new name of its replacement."""
    before = folder.with_name(f".{folder.name}.replaced")
    if before.exists() and not folder.exists():
        files.rename(before, folder)
    files.discard(before)


def _publish(fresh: Path, folder: Path, before: Path) -> None:
    replaces = folder.exists() or folder.is_symlink()
    if replaces:
        folder.rename(before)
    try:
        files.rename(fresh, folder)
    except BaseException:
        if not fresh.exists():  # it was renamed, but the rename may not be on disk
            folder.rename(fresh)
        if replaces:
            before.rename(folder)
        raise
