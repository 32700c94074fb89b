"""The directory of a run, `runs/<name>/`; what another run left there is never overwritten, nor is it shared.

A run that goes on from its own checkpoints keeps its directory.
"""

from __future__ import annotations

import fcntl
import itertools
import logging
import os
import shutil
from collections.abc import Iterator, Mapping
from io import TextIOWrapper
from pathlib import Path
from typing import Final, Literal

from hooktrainer._util.files import replace
from hooktrainer.errors import ConfigError, Fault

_LOG: Final = logging.getLogger("hooktrainer")


class RunDirectory:
    """The directory, held against other runs of the same name until it is released or the process ends."""

    def __init__(
        self, directory: Path, files: Mapping[str, str], resume: Literal["off", "auto"] | Path = "off"
    ) -> None:
        """Make the directory with these files; an earlier one is renamed to `<name>.1`, or the next free number.

        With `resume` it is kept if it holds what the run goes on from, with its files until `renew`. Raises
        `ConfigError` if it is in use, or cannot be made or written; nothing is renamed or left behind then.
        """
        self._lock: TextIOWrapper | None = None
        self._directory = directory
        self._fresh: Mapping[str, str] = {}
        """What is to take the place of the files of before."""
        fresh = directory.with_name(f".{directory.name}.new")
        try:
            directory.parent.mkdir(parents=True, exist_ok=True)
            real = directory.resolve()  # also of a run under another name, which points here
            self._lock = _locked(real.with_name(f".{real.name}.lock"), directory)
            if _goes_on_in(directory, resume):
                self._fresh = files
                return
            fresh.mkdir(exist_ok=True)
            for name, text in files.items():
                (fresh / name).write_text(text, encoding="utf-8")
            if directory.exists() or directory.is_symlink():
                kept = next(path for path in _numbered(directory) if not path.exists() and not path.is_symlink())
                _swap(directory, kept, fresh)
                _LOG.warning("%s is from an earlier run; it is kept as %s", directory, kept.name)
            else:
                fresh.rename(directory)
        except OSError as error:
            shutil.rmtree(fresh, ignore_errors=True)
            self.release()
            text = f"the run directory {directory} cannot be made: {error.strerror} ({error.filename})."
            raise ConfigError([Fault("run", f"{text} Choose another with run.dir=... or run.name=...")]) from None

    def renew(self) -> None:
        """The run does go on: from now on its files say how. Nothing to do in a directory that was just made."""
        for name, text in self._fresh.items():
            replace(self._directory / name, text.encode("utf-8"))
        self._fresh = {}

    def release(self) -> None:
        """Let another run of this name begin."""
        if self._lock is not None:
            Path(self._lock.name).unlink(missing_ok=True)
            self._lock.close()
            self._lock = None


def _goes_on_in(directory: Path, resume: Literal["off", "auto"] | Path) -> bool:
    """Whether what is to be resumed is in this directory, or nothing is in it yet."""
    if resume == "off" or not directory.is_dir():
        return False
    if isinstance(resume, Path):
        return resume.resolve().is_relative_to(directory.resolve())
    return not any(directory.iterdir()) or any((directory / "checkpoints").glob("*"))


def _swap(directory: Path, kept: Path, fresh: Path) -> None:
    """Put a fresh directory in the place of another, which gets a name of its own; both, or neither."""
    directory.rename(kept)
    try:
        fresh.rename(directory)
    except BaseException:
        kept.rename(directory)
        raise


def _locked(path: Path, directory: Path) -> TextIOWrapper:
    """A file that this process alone has locked; the system lets go of it when the process ends, however it does."""
    while True:
        file = path.open("a", encoding="utf-8")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            text = f"another run is going on in {directory}. Wait for it, or choose another name with run.name=..."
            raise ConfigError([Fault("run.name", text)]) from None
        if path.exists() and path.stat().st_ino == os.fstat(file.fileno()).st_ino:
            return file
        file.close()  # the run before removed it between the two


def _numbered(directory: Path) -> Iterator[Path]:
    return (directory.with_name(f"{directory.name}.{number}") for number in itertools.count(1))
