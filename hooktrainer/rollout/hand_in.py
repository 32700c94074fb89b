"""Hand in a group whose answers are scored, or report why it failed."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Final

from hooktrainer._util.timeline import Labels
from hooktrainer.errors import RolloutError, SyncError
from hooktrainer.ports import FailureReason, Group, GroupSource, Trajectory
from hooktrainer.rollout.score_pool import PoolError
from hooktrainer.rollout.statistics import Lap, RolloutStats

if TYPE_CHECKING:
    from hooktrainer.rollout.generation import Generator

CANCELLED: Final = (asyncio.CancelledError, concurrent.futures.CancelledError)


def failure_reason(error: BaseException) -> FailureReason:
    """Return the reason to report for a group whose generation raised this error."""
    if isinstance(error, CANCELLED):
        return "cancelled"
    if isinstance(error, RolloutError) and error.__cause__ is not None:
        return failure_reason(error.__cause__)  # the error of a reward
    return "timeout" if isinstance(error, TimeoutError) else "error"


def ends_engine(error: BaseException) -> bool:
    """Return whether the engine cannot continue after this error; others fail one group."""
    return isinstance(error, (SyncError, PoolError)) or not isinstance(error, (Exception, *CANCELLED))


def _labels(group: Group, answers: Sequence[Trajectory]) -> Labels:
    versions = [int(version) for answer in answers for version in answer.versions[[0, -1]] if len(answer.versions)]
    held = {"version": min(versions), "last_version": max(versions)} if versions else {}
    return {"group": group.number, "stamp": group.stamp, **held}


class HandIn:
    """Finishes groups in a source, or fails them, and counts their answers."""

    def __init__(self, generator: Generator, source: GroupSource, stats: RolloutStats, worker: str) -> None:
        """`worker` is the name of the worker in timelines."""
        self._generator = generator
        self._source = source
        self._stats = stats
        self._worker = worker

    def __call__(self, group: Group, scores: Future[list[Trajectory]], lap: Callable[[], Lap]) -> None:
        """Finish a group, or fail it; an error of one score fails no other group."""
        try:
            answers = self._answers(group, scores)
        except (Exception, *CANCELLED) as error:
            if ends_engine(error):
                raise
            self._source.fail(group, error, failure_reason(error))
        else:
            tokens = sum(answer.length for answer in answers)
            self._stats.generated(lap(), len(answers), tokens, self._worker, _labels(group, answers))
            self._source.finish(group, answers)

    def _answers(self, group: Group, scores: Future[list[Trajectory]]) -> Sequence[Trajectory]:
        answers: Sequence[Trajectory] | None = scores.result()
        expected = self._generator.options.n
        if answers is None or len(answers) != expected:
            found = "nothing" if answers is None else f"{len(answers)} answers"
            raise RolloutError(f"the engine generated {found} instead of {expected} answers to {group.prompt.text!r}")
        return answers
