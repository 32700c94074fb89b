"""Scores of the answers of a group, checked."""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any, Final

import attrs
import numpy as np

from hooktrainer._util.forks import Original
from hooktrainer.errors import RolloutError
from hooktrainer.ports import SCORE_TOLERANCE, Answer, Example, Score, Task

_ROUNDING_STEPS: Final = 8
"""Rounding errors of a sum of ten numbers, in units of the precision of a NumPy float."""


def awaited(value: Any) -> Any:
    """Return a value; await it in an event loop of its own if it is awaitable."""

    async def result() -> Any:
        return await value

    return asyncio.run(result()) if inspect.isawaitable(value) else value


def score_answers(
    task: Task, example: Example, answers: Sequence[Answer], resolve: Callable[[Any], Any] = awaited
) -> list[Score]:
    """Return the score of each answer, with `exact` filled in; `resolve` awaits those of an asynchronous task.

    Raises `RolloutError` if the task returns anything but scores.
    """
    with Original().without_copies():
        found: object = resolve(task.score(example, answers))
    where = f"{type(task).__name__}.score"
    if isinstance(found, (str, Mapping)) or not isinstance(found, (Sequence, np.ndarray)) or len(found) != len(answers):
        count = f"{len(found)} scores" if isinstance(found, (list, tuple, np.ndarray)) else repr(found)
        raise RolloutError(
            f"{where} returned {count} for the {len(answers)} answers to {example.text!r}; expected a list with one "
            "score for each answer"
        )
    return [checked_score(score, where, example, answer) for score, answer in zip(found, answers, strict=True)]


def checked_score(found: object, where: str, example: Example, answer: Answer) -> Score:
    """Return a score with `exact` filled in. Raises `RolloutError` if it is no finite number; `where` returned it."""
    score = found if isinstance(found, Score) else Score(found)  # type: ignore[arg-type]
    if not _is_finite(score.value):
        raise RolloutError(
            f"{where} returned {score.value!r} for the answer {answer.text!r} to {example.text!r}; expected a finite "
            "number"
        )
    value, tolerance = float(score.value), SCORE_TOLERANCE
    if isinstance(score.value, np.floating):
        tolerance = max(tolerance, _ROUNDING_STEPS * float(np.finfo(score.value).eps))
    if abs(value - round(value)) <= tolerance and round(value) in {0, 1}:
        value = float(round(value))  # partial credit is a sum with rounding errors
    exact = value == 1.0 if score.exact is None else bool(score.exact)
    for name, number in score.metrics.items():
        if not isinstance(number, (Real, np.bool_)):
            raise RolloutError(
                f"{where} returned the metric {name!r} = {number!r} for the answer {answer.text!r} to "
                f"{example.text!r}; expected a number"
            )
    return attrs.evolve(score, value=value, exact=exact, metrics={k: float(v) for k, v in score.metrics.items()})


def _is_finite(value: object) -> bool:
    return isinstance(value, (Real, np.bool_)) and math.isfinite(float(value))
