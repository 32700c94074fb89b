"""Weights in shared memory: one flat buffer for each set, of which modules hold views."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import attrs
import torch
from torch import Tensor, nn

from hooktrainer.errors import RolloutError
from hooktrainer.weight_sync.compatibility import tie_key

_ALIGNMENT: Final = 64
_DIRECTORY: Final = "/dev/shm"  # noqa: S108 - the file system of the system's shared memory


@attrs.frozen
class FlatLayout:
    """Offsets of the tensors of a state in a flat buffer; tied names share an offset."""

    entries: Mapping[str, tuple[int, torch.Size, torch.dtype]]
    """Offset in bytes, shape and dtype, by name."""
    nbytes: int

    @classmethod
    def of(cls, state: Mapping[str, Tensor]) -> FlatLayout:
        """Return a layout for all tensors of a state."""
        offsets: dict[object, int] = {}
        entries = {}
        end = 0
        for name, tensor in state.items():
            offset = offsets.setdefault(tie_key(tensor), end)
            if offset == end:
                end += -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT
            entries[name] = (offset, tensor.shape, tensor.dtype)
        return cls(entries, end)

    def allocate(self, count: int) -> list[Tensor]:
        """Allocate flat buffers in shared memory. Raises `RolloutError` if there is not enough.

        The system reserves the memory at once, and frees it when the last process that maps it ends.
        """
        free = _free_shared_memory()
        flats = [torch.zeros(max(self.nbytes, 1), dtype=torch.uint8) for _ in range(count)]
        try:
            for flat in flats:
                flat.share_memory_()  # type: ignore[no-untyped-call]
        except (RuntimeError, OSError) as error:
            for name in re.findall(r"</(torch_\w+)>", str(error)):  # torch leaves the file that it could not fill
                Path(_DIRECTORY, name).unlink(missing_ok=True)
            reason = str(error).rpartition(": ")[2]
            raise RolloutError(
                f"{count} copies of the weights need {_size(count * self.nbytes)} of shared memory, but {_DIRECTORY} "
                f"{free} ({reason}). Make it larger (`mount -o remount,size=...`, in a container "
                "`docker run --shm-size=...`), or use `rollout: {use: thread}`, which needs none"
            ) from None
        return flats

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """Return views of the tensors in a flat buffer."""
        return {
            name: flat[offset : offset + shape.numel() * dtype.itemsize].view(dtype).view(shape)
            for name, (offset, shape, dtype) in self.entries.items()
        }


def _free_shared_memory() -> str:
    try:
        return f"has {_size(shutil.disk_usage(_DIRECTORY).free)} free"
    except OSError:
        return "cannot be read"


def _size(count: int) -> str:
    units = ("bytes", "kB", "MB", "GB")
    power = min(max(0, (len(str(count)) - 1) // 3), 3)
    return f"{count / 1000**power:.4g} {units[power]}"


def use_tensors(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Replace the memory of a module's parameters and buffers by these tensors."""
    for named in (module.named_parameters, module.named_buffers):
        for name, tensor in named(remove_duplicate=False):
            tensor.data = tensors[name]
