"""The run: its clock, its result and its state."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import attrs
import numpy as np

from hooktrainer.events import FitEnd, Status
from hooktrainer.ports.sinks import RunInfo

if TYPE_CHECKING:
    from torch import Tensor


@runtime_checkable
class Clock(Protocol):
    """A monotonic clock."""

    def now(self) -> float:
        """Return the seconds since a fixed point in time."""
        ...


@attrs.frozen(eq=False, kw_only=True)
class Snapshot:
    """The state of a run at the end of a step. It shares no memory with the running components."""

    step: int
    """The last complete step; 0 before the first."""
    parts: Mapping[str, Any]
    """State by part, as strict JSON that refers to tensors and arrays by name."""
    tensors: Mapping[str, Tensor] = attrs.field(factory=dict)
    """CPU tensors, contiguous, no two of which share memory."""
    arrays: Mapping[str, np.ndarray] = attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class Result:
    """How a run ended."""

    status: Status
    reason: str
    step: int
    """The last complete step."""
    resumed_from: int = 0
    """The last complete step of the checkpoint that was resumed; 0 for a new run."""
    seconds: float
    dropped_sinks: tuple[str, ...] = ()
    """Classes of the sinks that failed and were dropped."""

    def event(self, version: int, times: Mapping[str, float]) -> FitEnd:
        """Return the `fit_end` event of this result."""
        counts = {"steps": float(self.step), "dropped_sinks": float(len(self.dropped_sinks))}
        summary = MappingProxyType({**counts, "seconds": self.seconds, **times})
        return FitEnd(status=self.status, reason=self.reason, step=self.step, version=version, summary=summary)


@runtime_checkable
class Stateful(Protocol):
    """A component whose state is saved in checkpoints."""

    def state_dict(self) -> Mapping[str, object]:
        """Return the state as nested numbers, strings, lists, dicts, tensors and arrays."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> object:
        """Restore the state returned by `state_dict()`."""
        ...


@runtime_checkable
class RunState(Protocol):
    """The state of the whole run: learner, buffer, prompts, dispatch, random generators and plugins."""

    @property
    def step(self) -> int:
        """Return the complete step that the run was restored from; 0 for a new run."""
        ...

    @property
    def total_steps(self) -> int | None:
        """Return the number of steps of the run; None if it lasts until its data ends."""
        ...

    @property
    def info(self) -> RunInfo:
        """Return what sinks are told about the run; complete once a checkpoint was restored."""
        ...

    @property
    def directory(self) -> Path | None:
        """Return the run directory; None if the run has none."""
        ...

    @property
    def seed(self) -> int:
        """Return `seed` of the run, which random choices of plugins start from."""
        ...

    @property
    def resume(self) -> Literal["off", "auto"] | Path:
        """Return `off` for a new run, `auto` for the newest checkpoint if there is one, or a checkpoint path."""
        ...

    @property
    def latest(self) -> Snapshot | None:
        """Return the snapshot that was captured or restored last."""
        ...

    @property
    def logged_step(self) -> int:
        """Return the last step recorded by `record_logged_step`, also by an earlier process; 0 if there is none."""
        ...

    def record_logged_step(self, step: int) -> None:
        """Record in the run directory that the row of `step` was written. Do nothing without a directory."""
        ...

    def record_dropped_sink(self, name: str) -> None:
        """Count a sink that failed and was dropped, for the result of the run."""
        ...

    def capture(self, step: int) -> Snapshot:
        """Return a copy of the whole state at the end of `step`; on the loop's thread, between updates.

        Raises `CheckpointError` with the name of a state that cannot be saved.
        """
        ...

    def restore(self, snapshot: Snapshot, *, keep_finished: bool = True, strict: bool = True) -> None:
        """Restore the whole state before the first step.

        Finished groups are dispatched again unless `keep_finished`. States of plugins that are not configured are
        ignored unless `strict`. Raises `CheckpointError` if the snapshot does not fit this run.
        """
        ...

    def capture_learner(self, step: int) -> Snapshot:
        """Return a copy of the learner's current state, between updates; it does not become `latest`.

        `step` is the last complete step. Raises `CheckpointError` with the name of a state that cannot be saved.
        """
        ...

    def restore_learner(self, snapshot: Snapshot, *, step: int) -> None:
        """Restore the learner alone, between updates of `step`; the learner starts that step again."""
        ...

    def random(self) -> Mapping[str, object]:
        """Return the state of the global random generators of Python, NumPy and torch."""
        ...

    def set_random(self, state: Mapping[str, Any]) -> None:
        """Restore the state of the global random generators."""
        ...
