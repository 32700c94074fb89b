"""The checkpoints of a run: `checkpoints/step_00000010/`, a pointer `latest`, and what interrupted saves left behind.

A save fills a directory whose name begins with a dot, and gives it its own name when all of it is on the disk; then the
pointer moves; then what is not to be kept is removed. Whatever does not look like a checkpoint of ours is left alone.
"""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final, Literal

import attrs

from hooktrainer._util import files
from hooktrainer.checkpoint import directory
from hooktrainer.errors import CheckpointError
from hooktrainer.ports import Snapshot

_LOG: Final = logging.getLogger("hooktrainer")
_NAME: Final = re.compile(r"step_(\d{8,})")
_LEFT: Final = re.compile(r"\.step_(\d{8,})\.(unfinished|removed)")
_ASIDE: Final = re.compile(r"step_(\d{8,})\.(set_aside|replaced)(\.\d+)?")
LATEST: Final = "latest"


@attrs.frozen
class Best:
    """What makes a checkpoint better than another."""

    metric: str
    mode: Literal["max", "min"] = "max"

    def improves(self, score: float, on: float | None) -> bool:
        """Whether a score is better than another one, or the first."""
        return on is None or (score > on if self.mode == "max" else score < on)


@attrs.frozen
class Found:
    """A checkpoint that was read."""

    path: Path
    snapshot: Snapshot


class Store:
    """The directory `checkpoints`; one process writes to it, one save at a time."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def save(
        self,
        snapshot: Snapshot,
        scores: Mapping[str, float] | None = None,
        *,
        wanted: Callable[[], bool] = lambda: True,
    ) -> Path:
        """Write a checkpoint and point to it; nothing of the others is touched.

        `wanted` is asked at the last moment, and an unwanted one is not published. Raises `CheckpointError` if it
        cannot be written; what was there is as it was.
        """
        name = f"step_{snapshot.step:08d}"
        target, unfinished = self.root / name, self.root / f".{name}.unfinished"
        try:
            if not self.root.is_dir():
                self.root.mkdir(parents=True)
                files.sync(self.root.parent)
            files.discard(unfinished)
            unfinished.mkdir()
            directory.write(snapshot, unfinished, scores or {})
            if not wanted():
                raise CheckpointError("the run was broken off")
            self._publish(unfinished, target)
        except Exception as error:  # noqa: BLE001 (whatever it is, what was there stays)
            files.discard(unfinished)
            text = f"the checkpoint of step {snapshot.step} could not be written to {self.root}: {error}"
            known = isinstance(error, (OSError, CheckpointError))  # says all; anything else is found by its traceback
            raise CheckpointError(f"{text}. What was kept before is as it was.") from (None if known else error)
        self._point_to(target)
        return target

    def retain(self, keep_last: int, best: Best | None = None) -> None:
        """Remove all checkpoints but the last ones (-1: none) and the best one."""
        if keep_last < 0:
            return
        scores = self._scores()
        kept = set(sorted(scores)[-keep_last:])
        if best is not None and (top := self.best(best)) is not None:
            kept.add(top[0])
        for step in scores.keys() - kept:
            self._remove(self._path(step))

    def best(self, best: Best) -> tuple[int, float] | None:
        """The step with the best score, the first of several, and the score; None if none has one."""
        top: tuple[int, float] | None = None
        for step, scores in sorted(self._scores().items()):
            score = scores.get(best.metric)
            if score is not None and best.improves(score, None if top is None else top[1]):
                top = (step, score)
        return top

    def newest(self, *, allow_fresh: bool = False) -> Found | None:
        """The newest checkpoint of which every byte is right; None if there never was one.

        Says what it passes over. Raises `CheckpointError` if there are only incomplete ones, unless `allow_fresh`.
        """
        passed = {
            step: f"the save of step {step} was interrupted" for step, kind in self._left() if kind == "unfinished"
        }
        found = None
        for step in sorted(self._steps(), reverse=True):
            try:
                found = Found(self._path(step), self.read(self._path(step)))
                break
            except CheckpointError as error:
                passed[step] = str(error)
        if found is None:
            passed = self._traces() | passed
        else:
            passed = {step: why for step, why in passed.items() if step > found.snapshot.step}
        self._report(found, passed, allow_fresh=allow_fresh)
        return found

    @staticmethod
    def read(path: Path) -> Snapshot:
        """One checkpoint. Raises `CheckpointError` if it is incomplete, damaged, or not of the step in its name."""
        try:
            snapshot = directory.read(path)
        except CheckpointError as error:
            raise CheckpointError(f"the checkpoint {path} is incomplete or damaged: {error}") from None
        if (named := _NAME.fullmatch(path.name)) and int(named[1]) != snapshot.step:
            raise CheckpointError(f"the checkpoint {path} is of step {snapshot.step}, which its name does not say")
        return snapshot

    def go_on_from(self, step: int) -> None:
        """Set aside what is newer than this step, and clear away what interrupted saves left."""
        for newer in sorted(self._steps()):
            if newer > step:
                self._set_aside(self._path(newer), "set_aside")
        for left, kind in self._left():
            files.discard(self.root / f".step_{left:08d}.{kind}")

    def _report(self, found: Found | None, passed: dict[int, str], *, allow_fresh: bool) -> None:
        listed = "; ".join(why for _, why in sorted(passed.items()))
        if found is None and passed:
            if not allow_fresh:
                raise CheckpointError(
                    f"{self.root} has no complete checkpoint, and nothing to go on from: {listed}. To begin anew "
                    "all the same, set allow_fresh: true at the checkpoint plugin, or run.resume=off"
                )
            _LOG.warning("beginning anew: %s has no complete checkpoint: %s", self.root, listed)
        elif found is not None and passed:
            steps = ", ".join(map(str, sorted(passed)))
            _LOG.warning("going on from step %d; %s is incomplete: %s", found.snapshot.step, steps, listed)
        pointer = self.root / LATEST
        if found is not None and pointer.exists() and (said := _text(pointer)) != found.path.name:
            _LOG.warning("%s says %r; the newest good checkpoint is %s", pointer, said, found.path.name)

    def _publish(self, unfinished: Path, target: Path) -> None:
        """Give it its name on the disk, or leave everything as it was."""
        there = target.exists() or target.is_symlink()
        aside = self._set_aside(target, "replaced") if there else None
        try:
            files.rename(unfinished, target)
        except BaseException:
            if not unfinished.exists():  # the name was given, but may not be on the disk
                target.rename(unfinished)
            if aside is not None:
                aside.rename(target)
            raise

    def _point_to(self, target: Path) -> None:
        """The pointer is for people; a resume looks at what is there, so that a save without it is a save."""
        pointer = self.root / LATEST
        try:
            files.replace(pointer, f"{target.name}\n".encode())
        except OSError as error:
            files.discard(pointer.with_name(f".{LATEST}.new"))
            _LOG.warning("%s is complete, but %s could not be moved to it: %s", target, pointer, error)

    def _traces(self) -> dict[int, str]:
        """What shows that there once was a checkpoint, by step."""
        names = map(_ASIDE.fullmatch, _names(self.root))
        traces = {int(match[1]): f"{match[0]} was set aside" for match in names if match}
        pointer = self.root / LATEST
        if pointer.exists():
            named = _NAME.fullmatch(said := _text(pointer))
            traces[int(named[1]) if named else 0] = f"{LATEST} names {said!r}, which is not there"
        return traces

    def _path(self, step: int) -> Path:
        return self.root / f"step_{step:08d}"

    def _steps(self) -> Iterator[int]:
        """What has the name of a checkpoint, whatever it is."""
        yield from (int(match[1]) for match in map(_NAME.fullmatch, _names(self.root)) if match)

    def _left(self) -> list[tuple[int, str]]:
        return [(int(match[1]), match[2]) for match in map(_LEFT.fullmatch, _names(self.root)) if match]

    def _scores(self) -> dict[int, Mapping[str, float]]:
        """Of everything that is a checkpoint by its manifest."""
        scores: dict[int, Mapping[str, float]] = {}
        for step in self._steps():
            path = self._path(step)
            if path.is_symlink():
                continue
            try:
                manifest = directory.read_manifest(path)
            except CheckpointError:
                continue
            if manifest.step == step:
                scores[step] = manifest.scores
        return scores

    def _set_aside(self, path: Path, why: str) -> Path:
        names = (
            f"{path.name}.{why}{suffix}" for suffix in itertools.chain([""], (f".{n}" for n in itertools.count(1)))
        )
        target = next(path.with_name(name) for name in names if not path.with_name(name).exists())
        files.rename(path, target)
        _LOG.warning("%s is not a part of this run any more; it is kept as %s", path, target.name)
        return target

    def _remove(self, path: Path) -> None:
        """Remove a checkpoint; files in it that are not its own stay where they are."""
        own = {*directory.read_manifest(path).files, directory.MANIFEST}
        if own >= set(_names(path)):
            removed = path.with_name(f".{path.name}.removed")
            files.discard(removed)
            path = path.rename(removed)  # it is whole, or it is gone
        (path / directory.MANIFEST).unlink()
        for name in own - {directory.MANIFEST}:
            (path / name).unlink(missing_ok=True)
        if not _names(path):
            path.rmdir()


def _names(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir()] if directory.is_dir() else []


def _pointed_to(path: Path) -> Path:
    if path.name == LATEST and path.is_file() and _NAME.fullmatch(name := _text(path)):
        return path.with_name(name)
    return path


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        return str(error)


def may_be_found(path: Path) -> bool:
    """Whether there is something that `find` would read."""
    path = _pointed_to(path)
    return path.is_dir() and any(
        _NAME.fullmatch(name) or name == directory.MANIFEST
        for root in (path, path / "checkpoints")
        for name in (path.name, *_names(root))
    )


def find(path: Path, *, allow_fresh: bool = False) -> Found | None:
    """What `run.resume` names: a checkpoint, a directory of checkpoints, a run with one, or a pointer."""
    path = _pointed_to(path)
    if _NAME.fullmatch(path.name) or (path / directory.MANIFEST).exists():
        return Found(path, Store.read(path))
    for root in (path / "checkpoints", path):
        if root.is_dir() and (found := Store(root).newest(allow_fresh=allow_fresh)) is not None:
            return found
    raise CheckpointError(f"there is no checkpoint at {path}; expected a directory such as runs/NAME or step_00000010")
