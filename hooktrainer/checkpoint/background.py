"""The port `CheckpointStore` of a run: the checkpoints on disk, written by a background thread."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from hooktrainer.checkpoint.store import Store, load
from hooktrainer.checkpoint.writer_thread import Writer
from hooktrainer.errors import CheckpointError
from hooktrainer.ports import BestMetric, Retention, Snapshot, StoredCheckpoint


class BackgroundStore:
    """Saves snapshots in `checkpoints/` of the run directory without blocking the loop."""

    def __init__(self, run_directory: Path | None) -> None:
        self._run_directory = run_directory
        self._retention = Retention()
        self._saved_step = 0
        self._writer = Writer(self._write)

    @property
    def saved_step(self) -> int:
        """Return the step of the checkpoint that was saved last or resumed from; 0 if there is none."""
        return self._saved_step

    def load(self, source: Literal["auto"] | Path, *, allow_fresh: bool = False) -> StoredCheckpoint | None:
        """Read the newest complete checkpoint (`auto`), or the one at a path."""
        try:
            return self._store.load_newest(allow_fresh=allow_fresh) if source == "auto" else load(Path(source))
        except OSError as error:
            place = self._store.root if source == "auto" else source
            raise CheckpointError(f"the checkpoints in {place} cannot be read: {error}") from None

    def open(self, step: int, retention: Retention) -> None:
        """Prepare for saves after `step`. Raises `CheckpointError` if the directory cannot be written."""
        try:
            self._store.prepare(step)
        except OSError as error:
            raise CheckpointError(f"checkpoints cannot be saved in {self._store.root}: {error}") from None
        self._saved_step, self._retention = step, retention

    def best_score(self, metric: BestMetric) -> float | None:
        """Return the best value of a metric over all checkpoints; None if no checkpoint has it."""
        best = self._store.best(metric)
        return None if best is None else best[1]

    def save(self, snapshot: Snapshot, scores: Mapping[str, float]) -> None:
        """Queue a snapshot for writing; block while another one is queued already."""
        if not self._writer.abandoned:
            self._writer.submit(snapshot, scores)

    def raise_error(self) -> None:
        """Raise the error of a failed save that was not raised yet."""
        self._writer.raise_error()

    def drop_queued(self) -> None:
        """Drop the queued snapshot unless it has a score."""
        self._writer.drop_queued()

    def close(self, timeout_s: float | None = None) -> None:
        """Wait until every queued snapshot is written, and end the thread."""
        if self._writer.abandoned:
            return
        try:
            self._writer.close(timeout_s)
        except CheckpointError:
            raise
        except BaseException:  # the process has to exit at once
            self._writer.abandoned = True
            raise

    @property
    def _store(self) -> Store:
        if self._run_directory is None:
            raise CheckpointError(
                "there is no run directory to save checkpoints in. Pass one: Trainer(..., RunPlace(directory=...))"
            )
        return Store(self._run_directory / "checkpoints")

    def _write(self, snapshot: Snapshot, scores: Mapping[str, float]) -> None:
        self._store.save(snapshot, scores, may_publish=lambda: not self._writer.abandoned)
        self._saved_step = snapshot.step
        try:
            self._store.retain(self._retention)
        except OSError as error:
            raise CheckpointError(f"older checkpoints in {self._store.root} cannot be removed: {error}") from None
