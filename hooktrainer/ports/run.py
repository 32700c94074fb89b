"""What a run keeps: its own state, and the rows that it reports."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import attrs
import numpy as np

from hooktrainer.events import FitEnd, Status
from hooktrainer.metrics.record import Row

if TYPE_CHECKING:
    from torch import Tensor


@runtime_checkable
class Clock(Protocol):
    """Seconds that only go forward."""

    def now(self) -> float:
        """Seconds since some fixed moment."""
        ...


@attrs.frozen(eq=False, kw_only=True)
class Snapshot:
    """The state of a run at the end of a step; it shares no memory with what is being trained."""

    step: int
    """The last complete step, 0 before the first."""
    parts: Mapping[str, Any]
    """Strict JSON by the name of a part; tensors and arrays are mentioned in it by name."""
    tensors: Mapping[str, Tensor] = attrs.field(factory=dict)
    """On the host, contiguous, no two sharing memory."""
    arrays: Mapping[str, np.ndarray] = attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class Result:
    """How a run ended."""

    status: Status
    reason: str
    step: int
    """The last complete step."""
    began: int = 0
    """The step after which this process went on; 0 for a run that it began."""
    seconds: float

    def event(self, version: int, times: Mapping[str, float]) -> FitEnd:
        """What every plugin is told."""
        summary = MappingProxyType({"steps": float(self.step), "seconds": self.seconds, **times})
        return FitEnd(status=self.status, reason=self.reason, step=self.step, version=version, summary=summary)


@runtime_checkable
class Sink(Protocol):
    """A place where rows go.

    A class that YAML names is called as `Class(directory, total_steps)`: the run directory, a `Path`, and the number of
    steps, None if the run lasts until its data ends. Whatever else the constructor takes must have a default. The name
    is a registered one, `package.module:Class`, or `file.py:Class` relative to the working directory.

    A sink that can take rows back has a `rewind(step)`, too: it takes back all rows after that step and returns their
    steps, ascending. A run that goes on from a checkpoint calls it after `open`.
    """

    def open(self) -> None:
        """Get ready; raises if rows could not be written later."""
        ...

    def write(self, step: int, row: Row) -> None:
        """Take one row; steps ascend."""
        ...

    def close(self) -> None:
        """Flush and let go. May be called twice, and before `open`."""
        ...


@runtime_checkable
class RunState(Protocol):
    """The state of the whole run: learner, buffer, prompts, dispatch, random generators and plugins."""

    @property
    def step(self) -> int:
        """The complete step that the run goes on from; 0 at the start."""
        ...

    @property
    def directory(self) -> Path | None:
        """The run directory; None if the run has none."""
        ...

    @property
    def resume(self) -> Literal["off", "auto"] | Path:
        """`off`: begin anew; `auto`: go on from the newest checkpoint, if there is any; else from this one."""
        ...

    @property
    def latest(self) -> Snapshot | None:
        """What was captured or restored last."""
        ...

    def capture(self, step: int) -> Snapshot:
        """A copy of everything, as of the end of `step`; on the loop's thread, between updates.

        Raises `CheckpointError` naming what cannot be kept.
        """
        ...

    def restore(self, snapshot: Snapshot, *, keep_finished: bool = True, strict: bool = True) -> None:
        """Put everything back before the first step. Raises `CheckpointError` if it is no state of this run.

        Finished groups that are not kept are dispatched again. Unless `strict`, a state of a plugin that is not there
        any more is left out.
        """
        ...

    def capture_learner(self, step: int) -> Snapshot:
        """A copy of the learner alone, as of the end of `step`, between updates; it does not become `latest`.

        Raises `CheckpointError` naming what cannot be kept.
        """
        ...

    def restore_learner(self, snapshot: Snapshot, *, step: int) -> None:
        """Put the learner alone back, at any time between updates of `step`, which begins anew for it."""
        ...

    def random(self) -> Mapping[str, object]:
        """The state of the global random generators of Python, NumPy and torch."""
        ...

    def set_random(self, state: Mapping[str, Any]) -> None:
        """Put the global random generators back."""
        ...
