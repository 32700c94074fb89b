"""Report the peak memory of the process and of its GPUs."""

from __future__ import annotations

import resource
import sys
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, Final

import attrs

from hooktrainer import Plugin, Priority, on
from hooktrainer.events import StepEnd
from hooktrainer.metrics import Last

GB: Final = 10**9
PROCESS: Final = "perf/max_memory_process_gb"
ALLOCATED: Final = "perf/max_memory_allocated_gb"
RESERVED: Final = "perf/max_memory_reserved_gb"


@attrs.define(kw_only=True)
class Memory(Plugin):
    """Report the peak memory of the process and of its GPUs since the process started, in gigabytes (10^9 bytes).

    The process is the one of the learner. Memory of worker processes and of other ranks is not included. Of several
    GPUs, the largest peak is reported: memory of tensors, and memory that PyTorch reserved for them.
    """

    adds_metrics: ClassVar = (PROCESS, ALLOCATED, RESERVED)

    @on(StepEnd, priority=Priority.COLLECT, adds=["metrics.row"])
    def measure(self, event: StepEnd) -> None:
        """Add the peaks to the row."""
        event.record.add({PROCESS: Last(_process_peak() / GB)})
        if peaks := _device_peaks():
            allocated, reserved = (max(peak) for peak in zip(*peaks, strict=True))
            event.record.add({ALLOCATED: Last(allocated / GB), RESERVED: Last(reserved / GB)})


def _process_peak() -> int:
    """Return the largest resident set of this process in bytes."""
    with suppress(OSError, StopIteration):  # of Linux; there, getrusage also counts the process that started this one
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # kilobytes, except on macOS


def _device_peaks() -> list[tuple[int, int]]:
    """Return the peaks of allocated and reserved bytes of each GPU; none if the process uses no GPU."""
    import torch  # a listing of plugins starts without torch

    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return []
    devices = range(torch.cuda.device_count())
    return [(torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device)) for device in devices]
