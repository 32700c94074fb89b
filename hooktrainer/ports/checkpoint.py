"""The checkpoint store: the saved states of a run, and which of them are kept."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

import attrs

from hooktrainer.ports.run import Snapshot


@attrs.frozen
class BestMetric:
    """The metric that ranks checkpoints."""

    key: str
    """A key of the row, such as `val/score/mean`."""
    mode: Literal["max", "min"] = "max"
    """Whether the largest or the smallest value is best."""

    def improves(self, value: float, best: float | None) -> bool:
        """Return whether `value` is better than `best`; every value is better than None."""
        return best is None or (value > best if self.mode == "max" else value < best)


@attrs.frozen(kw_only=True)
class Retention:
    """Which checkpoints are kept on disk."""

    keep_last: int = -1
    """Number of newest checkpoints to keep; -1 keeps all."""
    best: BestMetric | None = None
    """The best checkpoint by this metric is kept as well."""


@attrs.frozen
class StoredCheckpoint:
    """A checkpoint that was read and verified."""

    path: Path
    snapshot: Snapshot


@runtime_checkable
class CheckpointStore(Protocol):
    """The checkpoints of one run; snapshots are written in the background, in the order of `save`."""

    @property
    def saved_step(self) -> int:
        """Return the step of the checkpoint that was saved last or resumed from; 0 if there is none."""
        ...

    def load(self, source: Literal["auto"] | Path, *, allow_fresh: bool = False) -> StoredCheckpoint | None:
        """Read the newest complete checkpoint of this run (`auto`), or the one at a path.

        Return None if `auto` finds no trace of a checkpoint. Raises `CheckpointError` if only incomplete checkpoints
        exist, unless `allow_fresh`, and if there is no checkpoint at the path.
        """
        ...

    def open(self, step: int, retention: Retention) -> None:
        """Prepare for saves after `step`, the step that the run continues from (0 for a new run).

        Checkpoints of later steps are renamed, and the remains of interrupted saves are deleted. Raises
        `CheckpointError` if the store cannot be written.
        """
        ...

    def best_score(self, metric: BestMetric) -> float | None:
        """Return the best value of a metric over all checkpoints; None if no checkpoint has it."""
        ...

    def save(self, snapshot: Snapshot, scores: Mapping[str, float]) -> None:
        """Queue a snapshot for writing; block while another one is queued already.

        `scores` are the values that checkpoints are ranked by. Raises the error of an earlier save, once.
        """
        ...

    def raise_error(self) -> None:
        """Raise the error of a failed save that was not raised yet."""
        ...

    def drop_queued(self) -> None:
        """Drop the queued snapshot, because a newer one will be saved; one that has a score is kept."""
        ...

    def close(self, timeout_s: float | None = None) -> None:
        """Wait until every queued snapshot is written, and end the thread. Raises the error of a failed save.

        Raises `CheckpointError` after `timeout_s`; nothing is published after that, and later calls do nothing.
        """
        ...
