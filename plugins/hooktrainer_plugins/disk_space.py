"""End a run while there is still room on the disk to save it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final, Literal

import attrs
from attrs.validators import ge, in_

from hooktrainer import Plugin, Priority, on
from hooktrainer.errors import RunError
from hooktrainer.events import FitStart, StepEnd
from hooktrainer.metrics import Last
from hooktrainer.plugin import port
from hooktrainer.ports import RunState

GB: Final = 10**9


@attrs.define(kw_only=True)
class DiskSpace(Plugin):
    """Look at the free space before every save: room for two checkpoints, and what is to be kept free beside them.

    One is that of this step; the other that of the step which ends the run, once there is no room for two. A run that
    starts without room for one, and what is to be kept free, fails at once.
    """

    keep_free_gb: float = attrs.field(default=1.0, validator=ge(0))
    """Gigabytes (10^9 bytes) that stay free, also after the checkpoint that ends the run."""

    action: Literal["stop", "raise"] = attrs.field(default="stop", validator=in_(("stop", "raise")))
    """`stop` ends the run after this step, `raise` fails it; `checkpoint` tries to save this step in both."""

    path: str | None = None
    """Where to look; by default the run directory."""

    run: RunState = port()

    @on(FitStart, priority=Priority.CLEANUP)
    def begin(self, _event: FitStart) -> None:
        """Raises `RunError` if there is too little space to begin, or nowhere to look."""
        if lacking := self._lacking(checkpoints=1):
            raise RunError(lacking)

    @on(StepEnd, priority=Priority.COLLECT, adds=["metrics.row"])
    def measure(self, event: StepEnd) -> None:
        """Put the free space into the row."""
        event.record.add({"perf/disk_free_gb": Last(self._free() / GB)})

    @on(StepEnd, priority=Priority.SAVE)
    def guard(self, event: StepEnd) -> None:
        """Stop, or raise `RunError`, once the save of a next step would not leave enough; this step is still saved."""
        if lacking := self._lacking(checkpoints=1 if event.last else 2):
            if self.action == "raise":
                raise RunError(lacking)
            event.control.stop(lacking)

    def _lacking(self, *, checkpoints: int) -> str:
        """What is missing, in numbers; empty if nothing is."""
        free, saved = self._free(), checkpoints * self._checkpoint()
        needed = int(self.keep_free_gb * GB) + saved
        if free >= needed:
            return ""
        room = "a checkpoint" if checkpoints == 1 else "two checkpoints"
        return (
            f"{self._directory()} has {free / GB:.3f} GB free, and {needed / GB:.3f} GB are needed: keep_free_gb = "
            f"{self.keep_free_gb:g} and {saved / GB:.3f} GB for {room}. Make room, or lower keep_free_gb"
        )

    def _free(self) -> int:
        try:
            return shutil.disk_usage(self._directory()).free
        except OSError as error:
            what = "the run directory" if self.path is None else f"disk_space.path = {str(self.path)!r}"
            way_out = "Give disk_space a `path` that is there, or take it out of the plugins"
            raise RunError(f"{what}: the free space there cannot be known: {error}. {way_out}") from None

    def _checkpoint(self) -> int:
        """Bytes of what is saved next, as far as they are known: those of the last state that was captured."""
        latest = self.run.latest
        if latest is None:
            return 0
        tensors = sum(tensor.nbytes for tensor in latest.tensors.values())
        return tensors + sum(array.nbytes for array in latest.arrays.values())

    def _directory(self) -> Path:
        return Path(self.path) if self.path is not None else self.run.directory or Path()
