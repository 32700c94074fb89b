"""Scores of the answers to one prompt: every reward function is called, and the values are added with weights."""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final

import attrs

from hooktrainer.errors import ConfigError, Fault, RolloutError, line_of
from hooktrainer.ports import SCORE_TOLERANCE, Answer, Example, Score
from hooktrainer.tasks.rewards.activity import active
from hooktrainer.tasks.rewards.binding import Binding, Names
from hooktrainer.tasks.rewards.options import REWARDS, RewardOptions
from hooktrainer.tasks.rewards.returns import BadReturnError, Value, value_of, values_of_group
from hooktrainer.tasks.rewards.scene import Scene

_ERRORS: Final = (Exception, asyncio.CancelledError, concurrent.futures.CancelledError)


@attrs.define(eq=False)
class _Call:
    """A call of a reward function, and the value that it returned."""

    reward: str
    where: str
    """The answer and the prompt."""
    found: Any = None

    def __str__(self) -> str:
        return f"the reward '{self.reward}' of {self.where}"

    def make(self, call: Callable[[], Any]) -> None:
        """Make the call. Raises `RolloutError` if the function raises an error."""
        with active(self.__str__):
            try:
                self.found = call()
            except _ERRORS as error:
                raise self.failed(error) from error

    async def settle(self) -> None:
        """Await the value of an asynchronous function. Raises `RolloutError` if it raises an error."""
        try:
            self.found = await self.found
        except asyncio.CancelledError as error:
            raise RolloutError(f"{self} was cancelled") from error
        except _ERRORS as error:
            raise self.failed(error) from error

    def failed(self, error: BaseException) -> RolloutError:
        """Return the error that names the reward, the prompt and the answer."""
        text = str(error) if isinstance(error, BadReturnError) else f"raised {line_of(error)}"
        return RolloutError(f"the reward '{self.reward}' {text}; this was for {self.where}")


@attrs.frozen
class _Reward:
    name: str
    weight: float
    binding: Binding

    def start(self, scene: Scene) -> list[_Call]:
        """Call the function once, or for each answer. Values of asynchronous functions have to be awaited."""
        answers: Iterable[Answer | None] = (None,) if self.binding.per_group else scene.answers
        calls: list[_Call] = []
        try:
            for answer in answers:
                calls.append(_Call(self.name, scene.where(answer)))
                lookup = partial(scene.of_group, self.name) if answer is None else partial(scene.of_answer, answer)
                calls[-1].make(partial(self.binding.call, lookup, scene.columns))
        except BaseException:
            _close(calls)
            raise
        return calls

    def values(self, calls: Sequence[_Call], count: int) -> list[Value]:
        """Return the value of each answer. Raises `RolloutError` for a value that is none."""
        found: list[Value] = []
        for call in calls:
            try:
                found += values_of_group(call.found, count) if self.binding.per_group else [value_of(call.found)]
            except BadReturnError as error:
                raise call.failed(error) from None
        return found


class Rewards:
    """The reward functions of a task, bound to the columns of its data."""

    def __init__(self, options: Sequence[RewardOptions], names: Names) -> None:
        """Bind the functions. Raises `ConfigError` with every function that cannot be bound."""
        faults: list[Fault] = []
        self._rewards: list[_Reward] = []
        for index, option in enumerate(options):
            if any(option.label == reward.name for reward in self._rewards):
                text = f"two rewards have the name '{option.label}'; give each of them a `name`"
                faults.append(Fault(f"[{index}].name", text))
            try:
                function = REWARDS.resolve(option.use)
                binding = Binding.of(function, option.use.rpartition(":")[2], option.args, names)
            except ConfigError as error:
                faults += [Fault(f"[{index}].use", fault.message) for fault in error.faults]
                continue
            self._rewards.append(_Reward(option.label, option.weight, binding))
        if faults:
            raise ConfigError(faults)

    def score(
        self, example: Example, truth: Any, answers: Sequence[Answer]
    ) -> Sequence[Score] | Awaitable[Sequence[Score]]:
        """Return the score of each answer; an awaitable of it if a function is asynchronous.

        Raises `RolloutError` with the reward, the prompt and the answer if a function fails.
        """
        scene = Scene(example, truth, answers)
        if not answers:
            return []
        calls: list[list[_Call]] = []
        try:
            for reward in self._rewards:
                calls.append(reward.start(scene))  # noqa: PERF401 (those before are closed after an error)
        except BaseException:
            _close(call for made in calls for call in made)
            raise
        if any(inspect.isawaitable(call.found) for made in calls for call in made):
            return self._awaited(scene, calls)
        return self._combined(scene, calls)

    async def _awaited(self, scene: Scene, calls: Sequence[Sequence[_Call]]) -> Sequence[Score]:
        """Await all values at once; the first error cancels the others."""
        pending = [call.settle() for made in calls for call in made if inspect.isawaitable(call.found)]
        tasks = [asyncio.ensure_future(one) for one in pending]
        try:
            await asyncio.gather(*tasks)
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise
        return self._combined(scene, calls)

    def _combined(self, scene: Scene, calls: Sequence[Sequence[_Call]]) -> Sequence[Score]:
        count = len(scene.answers)
        columns = [reward.values(made, count) for reward, made in zip(self._rewards, calls, strict=True)]
        return [self._score(scene, index, [column[index] for column in columns]) for index in range(count)]

    def _score(self, scene: Scene, index: int, values: Sequence[Value]) -> Score:
        applying = [
            (reward, value) for reward, value in zip(self._rewards, values, strict=True) if value.number is not None
        ]
        if not applying:
            names = ", ".join(f"'{reward.name}'" for reward in self._rewards)
            text = f"returned None for {scene.where(scene.answers[index])}, so that it has no score"
            raise RolloutError(
                f"{'every reward, ' if len(values) > 1 else 'the reward '}{names}, {text}. Is a `return` missing?"
            )
        metrics = dict(scene.logged[index])
        total, counted = 0.0, []
        for reward, value in applying:
            number = float(value.number or 0.0)
            total += reward.weight * number
            metrics[reward.name] = number
            metrics |= {f"{reward.name}/{key}": further for key, further in value.metrics.items()}
            if reward.weight > 0:
                counted.append(abs(number - 1.0) <= SCORE_TOLERANCE)
        if not math.isfinite(total):
            parts = ", ".join(f"{reward.weight:g} x '{reward.name}'" for reward, _ in applying)
            text = f"the sum of {parts} is {total} for {scene.where(scene.answers[index])}; expected a finite number"
            raise RolloutError(text)
        return Score(total, bool(counted) and all(counted), metrics)


def _close(calls: Iterable[_Call]) -> None:
    """Close coroutines that will not be awaited, so that Python does not warn of them."""
    for call in calls:
        if inspect.iscoroutine(call.found):
            call.found.close()
