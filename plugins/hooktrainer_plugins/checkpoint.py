"""Keep the whole run on disk, and go on from there."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from pathlib import Path
from time import monotonic
from typing import Any, Final, Literal

import attrs
from attrs.validators import ge, gt, in_

from hooktrainer import Plugin, Priority, on
from hooktrainer.checkpoint.store import Best, Found, Store, find
from hooktrainer.checkpoint.writer import Writer
from hooktrainer.errors import CheckpointError, did_you_mean
from hooktrainer.events import FitEnd, FitStart, StepEnd, StepRecord, StepStart
from hooktrainer.metrics.record import Row, could_have
from hooktrainer.plugin import port
from hooktrainer.ports import RunState, Snapshot

_LOG: Final = logging.getLogger("hooktrainer")


def _is_count(_instance: object, _attribute: object, value: int) -> None:
    if value < 1 and value != -1:
        raise ValueError(f"{value} checkpoints cannot be kept; give 1 or more, or -1 for all")


@attrs.define(kw_only=True)
class Checkpoint(Plugin):
    """Save every few steps and at the end, and go on from the newest checkpoint as `run.resume` says.

    The state is copied on the loop's thread when a step ends, and written by one other thread. If a save is due while
    one is being written and one waits, the run waits: every save that is due is made.
    """

    every: int = attrs.field(default=10, validator=ge(1))
    """Steps between saves; the last complete step is always saved, however the run ends."""

    keep_last: int = attrs.field(default=2, validator=_is_count)
    """The newest checkpoints to keep; -1 keeps all. An older one is removed once a newer one is on the disk."""

    keep_best: str | None = None
    """A metric, such as `val/score/mean`; every step with a new best is saved, and the best is kept beside the last."""

    best_mode: Literal["max", "min"] = attrs.field(default="max", validator=in_(("max", "min")))
    """Whether the best is the largest or the smallest."""

    keep_buffer: bool = True
    """Whether finished groups are trained on after a resume, with their stamps; else they are generated again."""

    in_memory: bool = True
    """Keep a copy of the last complete step in memory, for an end in the middle of the next one. Without it, as for
    models that do not fit twice, such an end loses what came after the last save that was due."""

    patience_s: float = attrs.field(default=60.0, validator=gt(0))
    """Seconds that a run which is interrupted waits for the disk, before it gives up what is being written."""

    allow_fresh: bool = False
    """Whether `run.resume: auto` may begin anew where checkpoints were begun or kept, and none is complete."""

    strict: bool = True
    """Whether a resume fails if the checkpoint has the state of a plugin that is not in the configuration any more."""

    run: RunState = port()

    _store: Store | None = attrs.field(default=None, init=False, repr=False)
    _writer: Writer = attrs.field(init=False, repr=False)
    _by: Best | None = attrs.field(default=None, init=False, repr=False)
    _scores: Mapping[str, float] = attrs.field(factory=dict, init=False, repr=False)  # of the step captured last
    _best: float | None = attrs.field(default=None, init=False, repr=False)
    _saved: int = attrs.field(default=0, init=False, repr=False)  # the last step on the disk
    _begun: int = attrs.field(default=0, init=False, repr=False)  # the last step that was begun
    _random: Mapping[str, Any] = attrs.field(factory=dict, init=False, repr=False)
    _unscored: set[str] | None = attrs.field(factory=set, init=False, repr=False)  # keys of rows without `keep_best`

    def __attrs_post_init__(self) -> None:
        self._writer = Writer(self._write)
        self._by = None if self.keep_best is None else Best(self.keep_best, self.best_mode)

    @on(FitStart, priority=Priority.PREPARE, makes=["run.restored"])
    def restore(self, _event: FitStart) -> None:
        """Go on from a checkpoint, or begin at step 0. Raises `CheckpointError` if there is none that can be used."""
        if self.run.directory is None:
            raise CheckpointError(
                "there is no run directory to keep checkpoints in: Trainer(..., RunPlace(directory=...))"
            )
        store = Store(self.run.directory / "checkpoints")
        found = self._find(store)
        if found is not None:
            self._restore(found)
            self._random = self.run.random()
            _LOG.warning("going on from step %d, %s", self.run.step, found.path)
        elif self.in_memory:
            self.run.capture(0)  # what cannot be kept is known now, and not after the first step
        try:
            store.go_on_from(self.run.step)
        except OSError as error:
            raise CheckpointError(f"checkpoints cannot be kept in {store.root}: {error}") from error
        self._saved, self._store = self.run.step, store
        best = None if self._by is None else store.best(self._by)
        self._best = None if best is None else best[1]

    @on(FitStart, priority=Priority.CLEANUP + 99)
    def settle(self, _event: FitStart) -> None:
        """What others drew to get ready in this process, the run has drawn long ago."""
        if self.run.step:
            self.run.set_random(self._random)

    @on(StepStart, priority=Priority.PREPARE)
    def begin_step(self, event: StepStart) -> None:
        """From now on the run is not as the step before left it."""
        self._begun = event.step

    @on(StepEnd, priority=Priority.CLEANUP - 1, needs=["metrics.row?"])
    def save(self, event: StepEnd) -> None:
        """Copy the state of the step once everybody has handled it, and have it written if that is due."""
        self._writer.raise_failure()
        scores = self._scores_of(event.record)
        best = [score for score in scores.values() if self._by is not None and self._by.improves(score, self._best)]
        due = event.step % self.every == 0 or event.last or best
        if due or self.in_memory:
            snapshot, self._scores = self.run.capture(event.step), scores
            if due:
                self._writer.put(snapshot, scores)
        self._best = best[0] if best else self._best

    @on(FitEnd, priority=Priority.SAVE, needs=["metrics.row?"])
    def finish(self, event: FitEnd) -> None:
        """Write what is not written yet, up to the last complete step. Raises what could not be written."""
        deadline = None
        if event.status == "interrupted":
            deadline = monotonic() + self.patience_s
            if self.in_memory:
                self._writer.forgo()  # whoever waits for this end does not wait for more than the last step
        failure = self._closed(deadline)
        self._say_unscored()
        try:
            snapshot = None if self._store is None else self._last(event)
            if snapshot is not None and snapshot.step > self._saved and not self._writer.abandoned:
                self._writer.put(snapshot, self._scores)
        except CheckpointError as error:
            failure = failure or error
        second = self._closed(deadline)
        if failure is not None and second is not None:
            failure.add_note(f"at the end of the run the last complete step was tried once more: {second}")
        if (first := failure or second) is not None:
            raise first

    def _find(self, store: Store) -> Found | None:
        match self.run.resume:
            case "off":
                return None
            case "auto":
                return store.newest(allow_fresh=self.allow_fresh)
            case Path() as path:
                return find(path)

    def _restore(self, found: Found) -> None:
        try:
            self.run.restore(found.snapshot, keep_finished=self.keep_buffer, strict=self.strict)
        except CheckpointError as error:
            raise CheckpointError(f"{found.path}: {error}") from error.__cause__

    def _write(self, snapshot: Snapshot, scores: Mapping[str, float]) -> None:
        assert self._store is not None
        self._store.save(snapshot, scores, wanted=lambda: not self._writer.abandoned)
        self._saved = snapshot.step
        try:
            self._store.retain(self.keep_last, self._by)
        except OSError as error:
            raise CheckpointError(f"older checkpoints in {self._store.root} cannot be removed: {error}") from None

    def _closed(self, deadline: float | None) -> Exception | None:
        """Wait until everything that was due is written, or there is no more time; what went wrong with it."""
        if self._writer.abandoned:
            return None
        try:
            self._writer.close(None if deadline is None else max(0.0, deadline - monotonic()))
        except CheckpointError as error:
            return error
        except BaseException:
            self._writer.abandoned = True  # told to leave at once
            raise
        return None

    def _last(self, event: FitEnd) -> Snapshot | None:
        """The state at the end of the last complete step, as far as there is one."""
        latest = self.run.latest
        if event.step <= self._saved or (latest is not None and latest.step == event.step):
            return latest
        untouched = event.status == "completed" or (event.status == "stopped" and self._begun == event.step)
        if event.record is None and not untouched:
            _LOG.warning("step %d is complete but not saved: in_memory is off", event.step)
            return None
        self._scores = {} if event.record is None else self._scores_of(event.record)
        return self.run.capture(event.step)

    def _scores_of(self, record: StepRecord) -> Mapping[str, float]:
        if self._by is None or not record.sealed:
            return {}
        score = record.row.get(self._by.metric)
        self._look_for_it(record.row)
        return {self._by.metric: score} if isinstance(score, (int, float)) and math.isfinite(score) else {}

    def _look_for_it(self, row: Row) -> None:
        """Notice a `keep_best` that no row has; one of validation is known by the first row with validation."""
        assert self._by is not None
        if self._by.metric in row or self._best is not None:
            self._unscored = None
        elif self._unscored is not None:
            self._unscored |= row.keys()
            if self._by.metric.startswith("val/") and could_have(row, self._by.metric):
                self._say_unscored()

    def _say_unscored(self) -> None:
        if self._unscored and self.keep_best is not None and could_have(self._unscored, self.keep_best):
            meant = did_you_mean(self.keep_best, self._unscored)
            _LOG.warning("keep_best keeps nothing: no row so far has '%s'.%s", self.keep_best, meant)
            self._unscored = None
