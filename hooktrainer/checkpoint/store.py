"""The checkpoints of a run: `checkpoints/step_00000010/` and so on, and the pointer file `latest`.

A save writes a directory under a hidden temporary name and renames it once all files are synced to disk. Then the
pointer is updated, and then checkpoints that retention does not keep are removed. Files and directories that are not
checkpoints are never touched.
"""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from hooktrainer._util import files
from hooktrainer.checkpoint import file_format
from hooktrainer.errors import CheckpointError, message_of
from hooktrainer.ports import BestMetric, Retention, Snapshot, StoredCheckpoint

_LOG: Final = logging.getLogger("hooktrainer")
_NAME: Final = re.compile(r"step_(\d{8,})")
_TEMPORARY: Final = re.compile(r"\.step_(\d{8,})\.(unfinished|removed)")
_ASIDE: Final = re.compile(r"step_(\d{8,})\.(set_aside|replaced)(\.\d+)?")
LATEST: Final = "latest"


class Store:
    """The directory `checkpoints` of a run. One process writes to it, one save at a time."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def save(
        self,
        snapshot: Snapshot,
        scores: Mapping[str, float] | None = None,
        *,
        may_publish: Callable[[], bool] = lambda: True,
    ) -> Path:
        """Write a checkpoint, point `latest` to it, and return its path. Other checkpoints are not changed.

        `may_publish` is called just before the rename. Raises `CheckpointError` if the checkpoint cannot be written;
        earlier checkpoints are unchanged then.
        """
        name = f"step_{snapshot.step:08d}"
        target, unfinished = self.root / name, self.root / f".{name}.unfinished"
        try:
            if not self.root.is_dir():
                self.root.mkdir()  # without parents: a run directory that was removed or moved is not made again
                files.sync(self.root.parent)
            files.discard(unfinished)
            unfinished.mkdir()
            file_format.write(snapshot, unfinished, scores or {})
            if not may_publish():
                raise CheckpointError("the run was aborted")
            self._publish(unfinished, target)
        except Exception as error:  # noqa: BLE001 (any failure must leave earlier checkpoints unchanged)
            files.discard(unfinished)
            text = f"the checkpoint of step {snapshot.step} could not be written to {self.root}: {message_of(error)}"
            expected = isinstance(error, (OSError, CheckpointError))  # any other error needs its traceback
            raise CheckpointError(f"{text}. Earlier checkpoints are unchanged.") from (None if expected else error)
        self._update_latest(target)
        return target

    def retain(self, retention: Retention) -> None:
        """Remove all checkpoints that `retention` does not keep."""
        if retention.keep_last < 0:
            return
        scores = self._scores()
        kept = set(sorted(scores)[-retention.keep_last :])
        if retention.best is not None and (best := self.best(retention.best)) is not None:
            kept.add(best[0])
        for step in scores.keys() - kept:
            self._remove(self._path(step))

    def best(self, metric: BestMetric) -> tuple[int, float] | None:
        """Return the first step with the best score, and the score; None if no checkpoint has the metric."""
        best: tuple[int, float] | None = None
        for step, scores in sorted(self._scores().items()):
            score = scores.get(metric.key)
            if score is not None and metric.improves(score, None if best is None else best[1]):
                best = (step, score)
        return best

    def load_newest(self, *, allow_fresh: bool = False) -> StoredCheckpoint | None:
        """Return the newest complete checkpoint with correct checksums; None if there never was a checkpoint.

        Log every checkpoint that is skipped. Raises `CheckpointError` if all are incomplete, unless `allow_fresh`.
        """
        skipped = {
            step: f"the save of step {step} was interrupted"
            for step, kind in self._temporary_steps()
            if kind == "unfinished"
        }
        found = None
        for step in sorted(self._steps(), reverse=True):
            try:
                found = StoredCheckpoint(self._path(step), self.read(self._path(step)))
                break
            except CheckpointError as error:
                skipped[step] = str(error)
        if found is None:
            skipped = self._earlier_checkpoints() | skipped
        else:
            skipped = {step: reason for step, reason in skipped.items() if step > found.snapshot.step}
        self._report_skipped(found, skipped, allow_fresh=allow_fresh)
        return found

    @staticmethod
    def read(path: Path) -> Snapshot:
        """Read one checkpoint.

        Raises `CheckpointError` if it is incomplete or damaged, or if its step differs from the one in its name.
        """
        try:
            snapshot = file_format.read(path)
        except CheckpointError as error:
            raise CheckpointError(f"the checkpoint {path} is incomplete or damaged: {error}") from None
        if (named := _NAME.fullmatch(path.name)) and int(named[1]) != snapshot.step:
            raise CheckpointError(
                f"the checkpoint {path} holds step {snapshot.step}, but its name has step {int(named[1])}"
            )
        return snapshot

    def prepare(self, step: int) -> None:
        """Prepare for saves after `step`: set newer checkpoints aside, and delete the remains of interrupted saves."""
        for newer in sorted(self._steps()):
            if newer > step:
                self._set_aside(self._path(newer), "set_aside")
        for temporary, kind in self._temporary_steps():
            files.discard(self.root / f".step_{temporary:08d}.{kind}")

    def _report_skipped(self, found: StoredCheckpoint | None, skipped: dict[int, str], *, allow_fresh: bool) -> None:
        reasons = "; ".join(reason for _, reason in sorted(skipped.items()))
        if found is None and skipped:
            if not allow_fresh:
                raise CheckpointError(
                    f"{self.root} has no complete checkpoint, so the run cannot resume: {reasons}. To start a "
                    "new run, set allow_fresh: true for the checkpoint plugin, or run.resume=off"
                )
            _LOG.warning("starting a new run: %s has no complete checkpoint: %s", self.root, reasons)
        elif found is not None and skipped:
            steps = ", ".join(map(str, sorted(skipped)))
            verb = "is" if len(skipped) == 1 else "are"
            _LOG.warning(
                "resuming from step %d; the checkpoint of step %s %s incomplete: %s",
                found.snapshot.step,
                steps,
                verb,
                reasons,
            )
        pointer = self.root / LATEST
        if found is not None and pointer.exists() and (content := _text(pointer)) != found.path.name:
            _LOG.warning("%s contains %r; the newest complete checkpoint is %s", pointer, content, found.path.name)

    def _publish(self, unfinished: Path, target: Path) -> None:
        """Rename a written checkpoint to its final name, or leave everything unchanged."""
        occupied = target.exists() or target.is_symlink()
        aside = self._set_aside(target, "replaced") if occupied else None
        try:
            files.rename(unfinished, target)
        except BaseException:
            if not unfinished.exists():  # it was renamed, but the rename may not be on disk
                target.rename(unfinished)
            if aside is not None:
                aside.rename(target)
            raise

    def _update_latest(self, target: Path) -> None:
        """Point `latest` to a checkpoint. A failure is only logged, because resuming ignores the pointer."""
        pointer = self.root / LATEST
        try:
            files.replace(pointer, f"{target.name}\n".encode())
        except OSError as error:
            files.discard(pointer.with_name(f".{LATEST}.new"))
            _LOG.warning("%s is complete, but %s could not be updated: %s", target, pointer, error)

    def _earlier_checkpoints(self) -> dict[int, str]:
        """Return, by step, the evidence that there were checkpoints that no longer exist."""
        names = map(_ASIDE.fullmatch, _names(self.root))
        evidence = {int(match[1]): f"{match[0]} was set aside" for match in names if match}
        pointer = self.root / LATEST
        if pointer.exists():
            named = _NAME.fullmatch(content := _text(pointer))
            evidence[int(named[1]) if named else 0] = f"{LATEST} contains {content!r}, which does not exist"
        return evidence

    def _path(self, step: int) -> Path:
        return self.root / f"step_{step:08d}"

    def _steps(self) -> Iterator[int]:
        """Yield the step of every entry that has the name of a checkpoint."""
        yield from (int(match[1]) for match in map(_NAME.fullmatch, _names(self.root)) if match)

    def _temporary_steps(self) -> list[tuple[int, str]]:
        return [(int(match[1]), match[2]) for match in map(_TEMPORARY.fullmatch, _names(self.root)) if match]

    def _scores(self) -> dict[int, Mapping[str, float]]:
        """Return the scores of every directory with a valid manifest, by step."""
        scores: dict[int, Mapping[str, float]] = {}
        for step in self._steps():
            path = self._path(step)
            if path.is_symlink():
                continue
            try:
                manifest = file_format.read_manifest(path)
            except CheckpointError:
                continue
            if manifest.step == step:
                scores[step] = manifest.scores
        return scores

    def _set_aside(self, path: Path, reason: str) -> Path:
        names = (
            f"{path.name}.{reason}{suffix}" for suffix in itertools.chain([""], (f".{n}" for n in itertools.count(1)))
        )
        target = next(path.with_name(name) for name in names if not path.with_name(name).exists())
        files.rename(path, target)
        _LOG.warning("%s is no longer part of this run; it was renamed to %s", path, target.name)
        return target

    def _remove(self, path: Path) -> None:
        """Remove a checkpoint. Other files in its directory are kept."""
        own = {*file_format.read_manifest(path).files, file_format.MANIFEST}
        if own >= set(_names(path)):
            removed = path.with_name(f".{path.name}.removed")
            files.discard(removed)
            path = path.rename(removed)  # a kill leaves it either complete or hidden
        (path / file_format.MANIFEST).unlink()
        for name in own - {file_format.MANIFEST}:
            (path / name).unlink(missing_ok=True)
        if not _names(path):
            path.rmdir()


def _names(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir()] if directory.is_dir() else []


def _resolve_latest(path: Path) -> Path:
    if path.name == LATEST and path.is_file() and _NAME.fullmatch(name := _text(path)):
        return path.with_name(name)
    return path


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        return str(error)


def has_checkpoint(path: Path) -> bool:
    """Return whether `load` would find something to read at a path; nothing is read or verified."""
    path = _resolve_latest(path)
    return path.is_dir() and any(
        _NAME.fullmatch(name) or name == file_format.MANIFEST
        for root in (path, path / "checkpoints")
        for name in (path.name, *_names(root))
    )


def load(path: Path, *, allow_fresh: bool = False) -> StoredCheckpoint:
    """Read the checkpoint at a path: a checkpoint, a directory of checkpoints, a run directory, or a pointer file.

    Raises `CheckpointError` if there is no complete one.
    """
    path = _resolve_latest(path)
    if _NAME.fullmatch(path.name) or (path / file_format.MANIFEST).exists():
        return StoredCheckpoint(path, Store.read(path))
    for root in (path / "checkpoints", path):
        if root.is_dir() and (found := Store(root).load_newest(allow_fresh=allow_fresh)) is not None:
            return found
    raise CheckpointError(f"there is no checkpoint at {path}; expected a directory such as runs/NAME or step_00000010")
