"""Save the state of the run to disk, and resume from it."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from time import monotonic
from typing import Any, Final, Literal

import attrs
from attrs.validators import ge, in_

from hooktrainer import Plugin, Priority, on
from hooktrainer.errors import CheckpointError, did_you_mean
from hooktrainer.events import FitEnd, FitStart, StepEnd, StepRecord, StepStart
from hooktrainer.metrics import Row, could_have
from hooktrainer.plugin import is_duration, metric, port
from hooktrainer.ports import BestMetric, CheckpointStore, Retention, RunState, Snapshot, StoredCheckpoint

_LOG: Final = logging.getLogger("hooktrainer")


def _is_count(_instance: object, _attribute: object, value: int) -> None:
    if value < 1 and value != -1:
        raise ValueError(f"cannot keep {value} checkpoints; expected 1 or more, or -1 to keep all")


@attrs.define(kw_only=True)
class Checkpoint(Plugin):
    """Save the run every few steps and at its end, and resume from the checkpoint that `run.resume` names.

    The state is copied on the loop's thread at the end of a step and written by a background thread. If a save is due
    while one snapshot is being written and another is queued, the run waits. No due save is skipped.
    """

    every: int = attrs.field(default=10, validator=ge(1))
    """Steps between saves. The last complete step is always saved, however the run ends."""

    keep_last: int = attrs.field(default=2, validator=_is_count)
    """Number of newest checkpoints to keep; -1 keeps all. An older one is removed after a newer one is on disk."""

    keep_best: str | None = metric(None)
    """A metric, such as `val/score/mean`. Every step with a new best value is saved, and the best one is kept in
    addition to the last ones."""

    best_mode: Literal["max", "min"] = attrs.field(default="max", validator=in_(("max", "min")))
    """Whether the largest or the smallest value of `keep_best` is best."""

    keep_buffer: bool = True
    """Whether a resumed run trains on finished groups of the checkpoint, with their stamps. If false, their prompts
    are dispatched again."""

    in_memory: bool = True
    """Keep a copy of the last complete step in memory, and save it if the run ends in the middle of the next step.
    Disable it for models that do not fit into memory twice; such a run then loses the steps after the last save."""

    patience_s: float = attrs.field(default=60.0, validator=is_duration)
    """Seconds that an interrupted run waits for the disk before it abandons the save."""

    allow_fresh: bool = False
    """Whether `run.resume: auto` may start a new run where only incomplete checkpoints exist."""

    strict: bool = True
    """Whether resuming fails if the checkpoint holds the state of a plugin that is not configured."""

    run: RunState = port()
    store: CheckpointStore = port()

    _opened: bool = attrs.field(default=False, init=False, repr=False)  # whether the store accepts saves
    _metric: BestMetric | None = attrs.field(default=None, init=False, repr=False)
    _scores: Mapping[str, float] = attrs.field(factory=dict, init=False, repr=False)  # of the last captured step
    _best: float | None = attrs.field(default=None, init=False, repr=False)
    _started_step: int = attrs.field(default=0, init=False, repr=False)
    _random: Mapping[str, Any] = attrs.field(factory=dict, init=False, repr=False)
    _keys: set[str] | None = attrs.field(
        factory=set, init=False, repr=False
    )  # of rows so far, until one has the metric

    def __attrs_post_init__(self) -> None:
        self._metric = None if self.keep_best is None else BestMetric(self.keep_best, self.best_mode)

    @on(FitStart, priority=Priority.PREPARE, makes=["run.restored"])
    def restore(self, _event: FitStart) -> None:
        """Resume from a checkpoint, or start at step 0. Raises `CheckpointError` if no checkpoint can be used."""
        resume = self.run.resume
        found = None if resume == "off" else self.store.load(resume, allow_fresh=self.allow_fresh)
        if found is not None:
            self._restore(found)
            self._random = self.run.random()
            _LOG.warning("resuming from step %d, %s", self.run.step, found.path)
        elif resume == "auto" and self.run.directory is not None:
            _LOG.warning("there is no checkpoint in %s: a new run begins", self.run.directory / "checkpoints")
        if found is None and self.in_memory:
            self.run.capture(0)  # a state that cannot be saved fails now and not after the first step
        self.store.open(self.run.step, Retention(keep_last=self.keep_last, best=self._metric))
        self._opened = True
        self._best = None if self._metric is None else self.store.best_score(self._metric)

    @on(FitStart, priority=Priority.CLEANUP + 99)
    def restore_random(self, _event: FitStart) -> None:
        """Restore the RNG state of the checkpoint after all other handlers, which may draw while they start."""
        if self.run.step:
            self.run.set_random(self._random)

    @on(StepStart, priority=Priority.PREPARE)
    def start_step(self, event: StepStart) -> None:
        """Record that the state of the step before changes."""
        self._started_step = event.step

    @on(StepEnd, priority=Priority.CLEANUP - 1, needs=["metrics.row?"])
    def save(self, event: StepEnd) -> None:
        """Capture the state after all other handlers of the step, and queue it for writing if a save is due."""
        self.store.raise_error()
        scores = self._scores_of(event.record)
        new_best = [value for value in scores.values() if self._metric and self._metric.improves(value, self._best)]
        due = event.step % self.every == 0 or event.last or new_best
        if due or self.in_memory:
            snapshot, self._scores = self.run.capture(event.step), scores
            if due:
                self.store.save(snapshot, scores)
        self._best = new_best[0] if new_best else self._best

    @on(FitEnd, priority=Priority.SAVE, needs=["metrics.row?"])
    def finish(self, event: FitEnd) -> None:
        """Write everything up to the last complete step. Raises the error of a save that failed."""
        deadline = None
        if event.status == "interrupted":
            deadline = monotonic() + self.patience_s
            if self.in_memory:
                self.store.drop_queued()  # the last complete step is saved instead
        error = self._close(deadline)
        self._warn_if_unscored()
        try:
            snapshot = self._last_complete(event) if self._opened else None
            if snapshot is not None and snapshot.step > self.store.saved_step:
                self.store.save(snapshot, self._scores)
        except CheckpointError as another:
            error = error or another
        second = self._close(deadline)
        if error is not None and second is not None:
            error.add_note(f"at the end of the run, saving the last complete step failed as well: {second}")
        if (first := error or second) is not None:
            raise first

    def _restore(self, found: StoredCheckpoint) -> None:
        try:
            self.run.restore(found.snapshot, keep_finished=self.keep_buffer, strict=self.strict)
        except CheckpointError as error:
            raise CheckpointError(f"{found.path}: {error}") from error.__cause__

    def _close(self, deadline: float | None) -> CheckpointError | None:
        """Wait until all queued snapshots are written, at most until `deadline`. Return the error, if any."""
        try:
            self.store.close(None if deadline is None else max(0.0, deadline - monotonic()))
        except CheckpointError as error:
            return error
        return None

    def _last_complete(self, event: FitEnd) -> Snapshot | None:
        """Return the state at the end of the last complete step; None if it is not available any more."""
        latest = self.run.latest
        if event.step <= self.store.saved_step or (latest is not None and latest.step == event.step):
            return latest
        unchanged = event.status == "completed" or (event.status == "stopped" and self._started_step == event.step)
        if event.record is None and not unchanged:
            _LOG.warning("step %d is complete but not saved, because in_memory is off", event.step)
            return None
        self._scores = {} if event.record is None else self._scores_of(event.record)
        return self.run.capture(event.step)

    def _scores_of(self, record: StepRecord) -> Mapping[str, float]:
        if self._metric is None or not record.sealed:
            return {}
        score = record.row.get(self._metric.key)
        self._check_metric(self._metric.key, record.row)
        return {self._metric.key: score} if isinstance(score, (int, float)) and math.isfinite(score) else {}

    def _check_metric(self, key: str, row: Row) -> None:
        """Collect the keys of rows without the metric. Warn once a validated row lacks a metric of validation."""
        if key in row or self._best is not None:
            self._keys = None
        elif self._keys is not None:
            self._keys |= row.keys()
            if key.startswith("val/") and could_have(row, key):
                self._warn_if_unscored()

    def _warn_if_unscored(self) -> None:
        if self._keys and self.keep_best is not None and could_have(self._keys, self.keep_best):
            hint = did_you_mean(self.keep_best, self._keys)
            _LOG.warning("keep_best has no effect: no row so far has the metric '%s'.%s", self.keep_best, hint)
            self._keys = None
