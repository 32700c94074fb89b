"""Flat buffers in shared memory, which the engine and its worker processes map."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor

from hooktrainer.errors import RolloutError

if TYPE_CHECKING:
    from hooktrainer.ports import Weights

_DIRECTORY: Final = "/dev/shm"  # noqa: S108 - the file system of the system's shared memory


def allocate_shared(nbytes: int, count: int) -> list[Tensor]:
    """Allocate flat buffers in shared memory. Raises `RolloutError` if there is not enough.

    The system reserves the memory at once, and frees it when the last process that maps it ends.
    """
    free = _free_shared_memory()
    flats = [torch.zeros(max(nbytes, 1), dtype=torch.uint8) for _ in range(count)]
    try:
        for flat in flats:
            flat.share_memory_()  # type: ignore[no-untyped-call]
    except (RuntimeError, OSError) as error:
        for name in re.findall(r"</(torch_\w+)>", str(error)):  # torch leaves the file that it could not fill
            Path(_DIRECTORY, name).unlink(missing_ok=True)
        reason = str(error).rpartition(": ")[2]
        raise RolloutError(
            f"{count} copies of the weights need {_size(count * nbytes)} of shared memory, but {_DIRECTORY} "
            f"{free} ({reason}). Make it larger (`mount -o remount,size=...`, in a container "
            "`docker run --shm-size=...`), or use `rollout: {use: thread}`, which needs none"
        ) from None
    return flats


class MappedWeights:
    """Nothing is copied to workers that map the sets of the engine."""

    def open(self) -> None:
        """Do nothing."""

    def add(self, index: int, weights: Weights) -> None:
        """Return None."""

    def discard(self, index: int) -> None:
        """Do nothing."""

    def buckets(self) -> Sequence[tuple[int, object]]:
        """Return nothing."""
        return ()

    def close(self) -> None:
        """Do nothing."""


def _free_shared_memory() -> str:
    try:
        return f"has {_size(shutil.disk_usage(_DIRECTORY).free)} free"
    except OSError:
        return "cannot be read"


def _size(count: int) -> str:
    units = ("bytes", "kB", "MB", "GB")
    power = min(max(0, (len(str(count)) - 1) // 3), 3)
    return f"{count / 1000**power:.4g} {units[power]}"
