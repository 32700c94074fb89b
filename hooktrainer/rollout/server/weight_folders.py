"""Folders with the weights of a version, in a directory that servers read."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hooktrainer._util.folders import replace_folder
from hooktrainer.errors import SyncError, line_of

if TYPE_CHECKING:
    from torch import nn

    from hooktrainer.ports import Tokenizer

_READABLE: Final = 0o755


class WeightFolders:
    """A directory of this run, with a folder for each version that may be loaded. It is removed at the end."""

    def __init__(self, parent: Path, save: Callable[[nn.Module, Any, Path], None], tokenizer: Tokenizer) -> None:
        self._parent = parent
        self._save = save
        self._tokenizer = tokenizer
        self._directory: Path | None = None

    def write(self, module: nn.Module, version: int, *, keep: int) -> None:
        """Write the weights of a version; remove all others but those of the version `keep`."""
        try:
            if self._directory is None:
                self._parent.mkdir(parents=True, exist_ok=True)
                self._directory = Path(tempfile.mkdtemp(prefix="hooktrainer-", dir=self._parent)).absolute()
                self._directory.chmod(_READABLE)  # a server may belong to another user
            written = self._directory / f"version-{version}"
            kept = {written, self._folder(keep)}
            for folder in set(self._directory.iterdir()) - kept:
                shutil.rmtree(folder)
            replace_folder(written, lambda folder: self._save(module, self._tokenizer, folder))
        except Exception as error:
            text = f"the weights of version {version} cannot be written to rollout.weights_dir, {self._parent}"
            raise SyncError(f"{text}: {line_of(error)}") from error

    @property
    def name(self) -> str:
        """Name of the directory, which no other run has."""
        return "" if self._directory is None else self._directory.name

    def path(self, version: int) -> Path:
        """Return the folder of a version that was written. Raises `SyncError` if it was not."""
        folder = self._folder(version)
        if folder is None or not folder.exists():
            raise SyncError(f"load of version {version} without staged weights")
        return folder

    def _folder(self, version: int) -> Path | None:
        return self._directory and self._directory / f"version-{version}"

    def remove(self) -> None:
        """Remove the directory."""
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
        self._directory = None
