"""End a run while there is still disk space to save it."""

from __future__ import annotations

import errno
import logging
import shutil
from pathlib import Path
from typing import ClassVar, Final, Literal

import attrs
from attrs.validators import ge, in_, le

from hooktrainer import Plugin, Priority, on
from hooktrainer.errors import RunError
from hooktrainer.events import FitStart, StepEnd
from hooktrainer.metrics import Last
from hooktrainer.plugin import port
from hooktrainer.ports import RunState

_LOG: Final = logging.getLogger("hooktrainer")
GB: Final = 10**9


@attrs.define(kw_only=True)
class DiskSpace(Plugin):
    """Check the free disk space before every save, and end the run before a checkpoint would not fit.

    Two checkpoints and `keep_free_gb` must fit: the checkpoint of this step, and the one of the step that ends the run.
    A run that starts without space for one checkpoint and `keep_free_gb` fails at once.
    """

    adds_metrics: ClassVar = ("perf/disk_free_gb",)

    keep_free_gb: float = attrs.field(default=1.0, validator=[ge(0), le(10**9)])
    """Gigabytes (10^9 bytes) that remain free after the last checkpoint of the run, at most 10^9."""

    action: Literal["stop", "raise"] = attrs.field(default="stop", validator=in_(("stop", "raise")))
    """`stop` ends the run after this step, `raise` fails it. In both cases `checkpoint` still saves this step."""

    path: str | None = None
    """A path on the disk to check; the run directory by default."""

    run: RunState = port()

    _known: bool = attrs.field(default=True, init=False, repr=False)  # whether the file system reports its free space

    @on(FitStart, priority=Priority.CLEANUP)
    def check_at_start(self, _event: FitStart) -> None:
        """Raise `RunError` if there is too little space to start, or if the path does not exist."""
        try:
            shutil.disk_usage(self._directory())
        except OSError as error:
            self._known = error.errno not in (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)
            if not self._known:
                text = "%s does not report its free space (%s): disk_space has no effect"
                _LOG.warning(text, self._directory(), error.strerror)
        if lacking := self._lacking(checkpoints=1):
            raise RunError(lacking)

    @on(StepEnd, priority=Priority.COLLECT, adds=["metrics.row"])
    def measure(self, event: StepEnd) -> None:
        """Add the free space to the row."""
        if self._known:
            event.record.add({"perf/disk_free_gb": Last(self._free() / GB)})

    @on(StepEnd, priority=Priority.SAVE)
    def guard(self, event: StepEnd) -> None:
        """Stop, or raise `RunError`, if the save of the next step would not leave enough space."""
        if lacking := self._lacking(checkpoints=1 if event.last else 2):
            if self.action == "raise":
                raise RunError(lacking)
            event.control.stop(lacking)

    def _lacking(self, *, checkpoints: int) -> str:
        """Return the free and the required space as a sentence; an empty string if there is enough."""
        if not self._known:
            return ""
        free, saved = self._free(), checkpoints * self._checkpoint()
        needed = int(self.keep_free_gb * GB) + saved
        if free >= needed:
            return ""
        count = "a checkpoint" if checkpoints == 1 else "two checkpoints"
        return (
            f"{self._directory()} has {free / GB:.3f} GB free, and {needed / GB:.3f} GB are needed: keep_free_gb = "
            f"{self.keep_free_gb:g} and {saved / GB:.3f} GB for {count}. Free some space, or lower keep_free_gb"
        )

    def _free(self) -> int:
        try:
            return shutil.disk_usage(self._directory()).free
        except OSError as error:
            place = "the run directory" if self.path is None else f"disk_space.path = {str(self.path)!r}"
            remedy = "Give disk_space a `path` that exists, or remove it from the plugins"
            raise RunError(f"{place}: the free space cannot be determined: {error}. {remedy}") from None

    def _checkpoint(self) -> int:
        """Return the expected size of the next checkpoint in bytes: the size of the last captured state, or 0."""
        latest = self.run.latest
        if latest is None:
            return 0
        tensors = sum(tensor.nbytes for tensor in latest.tensors.values())
        return tensors + sum(array.nbytes for array in latest.arrays.values())

    def _directory(self) -> Path:
        return Path(self.path) if self.path is not None else self.run.directory or Path()
