"""Create and lock the directory of a run, `runs/<name>/`.

Two runs never share a directory, and a new run never overwrites the results of an earlier one. A run that resumes from
its own checkpoints keeps its directory.
"""

from __future__ import annotations

import fcntl
import itertools
import logging
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from io import TextIOWrapper
from pathlib import Path
from typing import Final, Literal

from hooktrainer._util.files import replace_all
from hooktrainer.errors import ConfigError, Fault, RunError

_LOG: Final = logging.getLogger("hooktrainer")
_NO_STEP: Final = ".no_step"
"""Name of an empty file in the directory of a run that ended without a complete step."""


class RunDirectory:
    """A run directory that is locked against other runs until it is released or the process ends."""

    def __init__(
        self, directory: Path, files: Mapping[str, str], resume: Literal["off", "auto"] | Path = "off"
    ) -> None:
        """Create the directory with these files; rename an earlier one to `<name>.1`, or the next free number.

        With `resume`, a directory with the checkpoint to resume is not renamed, and `renew` writes the files. Raises
        `ConfigError` if the directory is in use, or cannot be created or written; nothing is changed then.
        """
        self._lock: TextIOWrapper | None = None
        self._directory = directory
        self._fresh: Mapping[str, str] = {}
        """Files that `renew` writes."""
        fresh = directory.with_name(f".{directory.name}.new")
        try:
            directory.parent.mkdir(parents=True, exist_ok=True)
            real = directory.resolve()  # a run under another name may link to this directory
            self._lock = _locked(real.with_name(f".{real.name}.lock"), directory)
            if _resumes_in(directory, resume):
                self._fresh = files
                return
            fresh.mkdir(exist_ok=True)
            for name, text in files.items():
                (fresh / name).write_text(text, encoding="utf-8")
            if directory.exists() or directory.is_symlink():
                empty = _has_no_results(directory, files)
                renamed = next(path for path in _numbered(directory) if not path.exists() and not path.is_symlink())
                _replace(directory, renamed, fresh)
                if empty:
                    shutil.rmtree(renamed)
                else:
                    _LOG.warning("%s is from an earlier run; it was renamed to %s", directory, renamed.name)
            else:
                fresh.rename(directory)
        except OSError as error:
            shutil.rmtree(fresh, ignore_errors=True)
            self.release()
            text = f"the run directory {directory} cannot be created: {_described(error)}."
            raise ConfigError([Fault("run", f"{text} Choose another one with run.dir=... or run.name=...")]) from None

    def renew(self) -> None:
        """Replace the files in a directory that is resumed; a new directory has them already.

        Raises `RunError` if they cannot be written; nothing is changed then.
        """
        try:
            replace_all(self._directory, {name: text.encode("utf-8") for name, text in self._fresh.items()})
        except OSError as error:
            text = f"the run directory {self._directory} cannot be written: {error.strerror}. Free some space, or make"
            raise RunError(f"{text} it writable, and resume again with run.resume=auto") from None
        self._fresh = {}

    def mark_as_empty(self) -> None:
        """Record that the run has no complete step, so that the next one replaces its directory."""
        with suppress(OSError):  # the directory is renamed then, as any other
            (self._directory / _NO_STEP).touch()

    def release(self) -> None:
        """Release the lock, so that another run can use the directory."""
        if self._lock is not None:
            with suppress(OSError):  # the next run finds the file unlocked
                Path(self._lock.name).unlink()
            with suppress(OSError):  # user code has closed its file descriptor
                self._lock.close()
            self._lock = None


def _has_no_results(directory: Path, files: Mapping[str, str]) -> bool:
    """Return whether the run in a directory ended without a complete step, and left only its own files there."""
    if directory.is_symlink() or not (directory / _NO_STEP).is_file():
        return False
    others = [path for path in directory.iterdir() if path.name not in (*files, _NO_STEP)]
    return not any(any(path.iterdir()) if path.is_dir() else path.stat().st_size for path in others)


def _resumes_in(directory: Path, resume: Literal["off", "auto"] | Path) -> bool:
    """Return whether the directory has the checkpoint to resume, or is empty."""
    if resume == "off" or not directory.is_dir():
        return False
    if isinstance(resume, Path):
        return resume.resolve().is_relative_to(directory.resolve())
    return not any(directory.iterdir()) or any((directory / "checkpoints").glob("*"))


def _replace(directory: Path, renamed: Path, fresh: Path) -> None:
    """Rename a directory and put a fresh one in its place; on an error, undo both."""
    directory.rename(renamed)
    try:
        fresh.rename(directory)
    except BaseException:
        renamed.rename(directory)
        raise


def _described(error: OSError) -> str:
    """Return the reason and the file of an error; an error of an open file, such as a full disk, names none."""
    return f"{error.strerror} ({error.filename})" if error.filename else str(error.strerror)


def _locked(path: Path, directory: Path) -> TextIOWrapper | None:
    """Return an open file that this process has locked; the system releases the lock when the process ends.

    Return None if the file system has no locks, or the lock file cannot be created.
    """
    while True:
        try:
            file = path.open("a", encoding="utf-8")
        except OSError as error:
            _warn_unlocked(directory, error)
            return None
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            text = f"another run is using {directory}. Wait for it to end, or choose another name with run.name=..."
            raise ConfigError([Fault("run.name", text)]) from None
        except OSError as error:
            file.close()
            with suppress(OSError):
                path.unlink()
            _warn_unlocked(directory, error)
            return None
        if path.exists() and path.stat().st_ino == os.fstat(file.fileno()).st_ino:
            return file
        file.close()  # the earlier run removed the file after it was opened


def _warn_unlocked(directory: Path, error: OSError) -> None:
    text = "%s cannot be locked (%s): two runs in this directory cannot be told apart. Start only one"
    _LOG.warning(text, directory, error.strerror)


def _numbered(directory: Path) -> Iterator[Path]:
    return (directory.with_name(f"{directory.name}.{number}") for number in itertools.count(1))
