"""Fakes of the run state and the checkpoint store; they keep everything in memory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import attrs

from hooktrainer.checkpoint.codec import decode, encode
from hooktrainer.errors import CheckpointError
from hooktrainer.ports import BestMetric, Retention, RunInfo, Snapshot, StoredCheckpoint


@attrs.define(kw_only=True)
class FakeRunState:
    """A run whose whole state is the mapping `state`."""

    directory: Path | None = None
    resume: Literal["off", "auto"] | Path = "off"
    step: int = 0
    total_steps: int | None = None
    seed: int = 0
    iterations_per_step: int = 1
    state: dict[str, Any] = attrs.field(factory=dict)
    generators: dict[str, Any] = attrs.field(factory=dict)
    """A stand-in for the state of the global random generators."""
    latest: Snapshot | None = None
    logged_step: int = 0
    dropped_sinks: list[str] = attrs.field(factory=list)
    captured: list[int] = attrs.field(factory=list)
    """Steps that were captured."""
    learner_restores: list[int] = attrs.field(factory=list)
    """Step of every `restore_learner`."""

    @property
    def info(self) -> RunInfo:
        """Return the directory, the steps and defaults."""
        return RunInfo(
            directory=self.directory,
            resumed_step=self.step,
            total_steps=self.total_steps,
            iterations_per_step=self.iterations_per_step,
        )

    def record_dropped_sink(self, name: str) -> None:
        """Record the name in `dropped_sinks`."""
        self.dropped_sinks.append(name)

    def record_logged_step(self, step: int) -> None:
        """Record the step in `logged_step`."""
        self.logged_step = step

    def capture(self, step: int) -> Snapshot:
        """Return a copy of the state."""
        self.captured.append(step)
        self.latest = encode(step, {"state": self.state})
        return self.latest

    def restore(self, snapshot: Snapshot, *, keep_finished: bool = True, strict: bool = True) -> None:  # noqa: ARG002
        """Restore the state."""
        self.state = decode(snapshot, "state")
        self.step, self.latest = snapshot.step, snapshot

    def capture_learner(self, step: int) -> Snapshot:
        """Return a copy of the state; it does not become `latest`."""
        return encode(step, {"state": self.state})

    def restore_learner(self, snapshot: Snapshot, *, step: int) -> None:
        """Restore the state and record the step."""
        self.state = decode(snapshot, "state")
        self.learner_restores.append(step)

    def random(self) -> Mapping[str, object]:
        """Return a copy of the generators."""
        return dict(self.generators)

    def set_random(self, state: Mapping[str, Any]) -> None:
        """Restore the generators."""
        self.generators = dict(state)


@attrs.define(kw_only=True)
class FakeCheckpointStore:
    """A store that keeps all checkpoints in memory and writes nothing."""

    snapshots: dict[int, Snapshot] = attrs.field(factory=dict)
    """The saved snapshots by step."""
    scores: dict[int, Mapping[str, float]] = attrs.field(factory=dict)
    """The scores that snapshots were saved with, by step."""
    retention: Retention | None = None
    """The argument of `open`."""
    saved_step: int = 0
    error: Exception | None = None
    """The error that the next `save`, `raise_error` or `close` raises, once."""

    def load(self, source: Literal["auto"] | Path, *, allow_fresh: bool = False) -> StoredCheckpoint | None:  # noqa: ARG002
        """Return the snapshot with the highest step, or the one whose step ends the path."""
        if source == "auto":
            step = max(self.snapshots, default=None)
        else:
            step = int(Path(source).name.removeprefix("step_"))
            if step not in self.snapshots:
                raise CheckpointError(f"there is no checkpoint at {source}")
        return None if step is None else StoredCheckpoint(Path(f"step_{step:08d}"), self.snapshots[step])

    def open(self, step: int, retention: Retention) -> None:
        """Remember the retention, and drop snapshots of later steps."""
        self.snapshots = {saved: snapshot for saved, snapshot in self.snapshots.items() if saved <= step}
        self.scores = {saved: scores for saved, scores in self.scores.items() if saved <= step}
        self.saved_step, self.retention = step, retention

    def best_score(self, metric: BestMetric) -> float | None:
        """Return the best value of a metric over all snapshots; None if no snapshot has it."""
        best: float | None = None
        for scores in self.scores.values():
            if metric.key in scores and metric.improves(scores[metric.key], best):
                best = scores[metric.key]
        return best

    def save(self, snapshot: Snapshot, scores: Mapping[str, float]) -> None:
        """Keep a snapshot."""
        self.raise_error()
        self.snapshots[snapshot.step], self.scores[snapshot.step] = snapshot, scores
        self.saved_step = snapshot.step

    def raise_error(self) -> None:
        """Raise `error`, once."""
        error, self.error = self.error, None
        if error is not None:
            raise error

    def drop_queued(self) -> None:
        """Do nothing: every snapshot is saved at once."""

    def close(self, timeout_s: float | None = None) -> None:  # noqa: ARG002
        """Raise `error`, if there is one."""
        self.raise_error()
