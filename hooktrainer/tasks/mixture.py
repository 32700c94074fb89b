"""The task of several tasks, whose prompts follow each other in fixed ratios."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Awaitable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any, Final

import attrs
import numpy as np
from attrs.validators import ge, instance_of, matches_re, min_len

from hooktrainer._util.registry import BUILDS_A, HINT, Kind
from hooktrainer.errors import ConfigError
from hooktrainer.ports import Answer, Environment, Example, HasEnvironment, HasFingerprint, Score, Task, missing_methods
from hooktrainer.tasks.examples import LazyExamples


def _is_task(found: Any, where: str) -> None:
    if lacks := missing_methods(found):
        raise ConfigError(f"{found.__name__} of {where} is not a task: it has no {lacks}")
    if not attrs.has(found):
        raise ConfigError(f"{found.__name__} of {where} is not an attrs class, so it has no options")


_TASKS: Final[Kind[type[Any]]] = Kind("task", group="hooktrainer.tasks", check=_is_task)


@attrs.frozen(kw_only=True)
class Part:
    """A task of a mixture. Its own options are written next to these."""

    ratio: int = attrs.field(
        default=1,
        validator=[instance_of(int), ge(1)],
        metadata={HINT: "Ratios are whole numbers: write 7 and 3 in place of 0.7 and 0.3."},
    )
    """Prompts of this task for each round of the mixture."""
    name: str = attrs.field(default="", validator=matches_re(r"[\w.-]*"))
    """Name in metrics. By default the `name` of the task, or else its `use`."""
    use: str = ""
    """Short name or class of the task."""
    task: Any = attrs.field(metadata={BUILDS_A: _TASKS})
    """The task itself."""

    @property
    def label(self) -> str:
        """The name in metrics."""
        return self.name or getattr(self.task, "name", "") or self.use.rpartition(":")[2]


@attrs.frozen(kw_only=True, slots=False)
class Mixture:
    """Several tasks. Each round has as many prompts of each as its ratio, in random order."""

    tasks: tuple[Part, ...] = attrs.field(validator=min_len(1))
    """The tasks, each with its options, `ratio` and `name`."""

    @property
    def sources(self) -> Sequence[str]:
        """Name of each task in metrics; equal names are numbered."""
        labels = [part.label for part in self.tasks]
        seen: Counter[str] = Counter()
        names = []
        for label in labels:
            seen[label] += 1
            names.append(f"{label}_{seen[label]}" if seen[label] > 1 else label)
        return names

    @property
    def size(self) -> int | None:
        """Number of examples of one epoch, which are whole rounds; None if every task is endless."""
        rounds = [part.task.size // part.ratio for part in self.tasks if part.task.size is not None]
        return min(rounds) * self._round if rounds else None

    @property
    def alphabet(self) -> str:
        """Characters of all tasks, for the model that reads characters."""
        return "".join(sorted({letter for part in self.tasks for letter in part.task.alphabet}))

    @property
    def longest_prompt(self) -> int:
        """Number of characters of the longest prompt."""
        return max(int(part.task.longest_prompt) for part in self.tasks)

    def train(self, seed: int) -> Iterable[Example]:
        """Return the examples of one epoch. It ends before the first round that a task cannot fill."""
        found = [part.task.train(_seed(seed, index)) for index, part in enumerate(self.tasks)]
        if all(isinstance(examples, Sequence) for examples in found):
            return self._indexed(found, seed)
        return self._interleaved([iter(examples) for examples in found], seed)

    def heldout(self, size: int) -> Sequence[Example]:
        """Return the first `size` held-out examples, in the same ratios; tasks without any are left out."""
        found = [iter(part.task.heldout(size)) for part in self.tasks]
        firsts = [next(examples, None) for examples in found]
        order = [index for index in self._parts_of_a_round() if firsts[index] is not None]
        left = [
            iter(()) if first is None else itertools.chain([first], rest)
            for first, rest in zip(firsts, found, strict=True)
        ]
        examples: list[Example] = []
        for index in itertools.cycle(order) if order else ():
            example = next(left[index], None) if len(examples) < size else None
            if example is None:
                break
            examples.append(self._named(index, example))
        return tuple(examples)

    def score(
        self, example: Example, answers: Sequence[Answer]
    ) -> Sequence[float | Score] | Awaitable[Sequence[float | Score]]:
        """Return the scores of the task that the example comes from."""
        return self._task_of[example.source].score(attrs.evolve(example, source=""), answers)

    def environment(self, example: Example) -> Environment | None:
        """Return an environment of the task that the example comes from, if that has environments."""
        task = self._task_of[example.source]
        return task.environment(attrs.evolve(example, source="")) if isinstance(task, HasEnvironment) else None

    def fingerprint(self) -> Mapping[str, str]:
        """Return the checksums of the data of all tasks."""
        stored = [(name, task) for name, task in self._task_of.items() if isinstance(task, HasFingerprint)]
        return {f"{name}: {key}": value for name, task in stored for key, value in task.fingerprint().items()}

    @cached_property
    def _task_of(self) -> Mapping[str, Task]:
        return {name: part.task for name, part in zip(self.sources, self.tasks, strict=True)}

    @property
    def _round(self) -> int:
        return sum(part.ratio for part in self.tasks)

    def _parts_of_a_round(self) -> list[int]:
        return [index for index, part in enumerate(self.tasks) for _ in range(part.ratio)]

    def _order(self, seed: int, number: int) -> list[int]:
        """Return the task of each example of a round."""
        order: list[int] = np.random.default_rng((4, seed, number)).permutation(self._parts_of_a_round()).tolist()
        return order

    def _indexed(self, found: Sequence[Sequence[Example]], seed: int) -> Sequence[Example]:
        order_of = lru_cache(maxsize=2)(lambda number: self._order(seed, number))

        def make(place: int) -> Example:
            number, within = divmod(place, self._round)
            order = order_of(number)
            index = order[within]
            taken = number * self.tasks[index].ratio + order[:within].count(index)
            return self._named(index, found[index][taken])

        rounds = min(len(examples) // part.ratio for examples, part in zip(found, self.tasks, strict=True))
        return LazyExamples(rounds * self._round, make)

    def _interleaved(self, found: Sequence[Iterator[Example]], seed: int) -> Iterator[Example]:
        for number in itertools.count():
            taken = [
                list(itertools.islice(examples, part.ratio)) for examples, part in zip(found, self.tasks, strict=True)
            ]
            if any(len(examples) < part.ratio for examples, part in zip(taken, self.tasks, strict=True)):
                return
            left = [iter(examples) for examples in taken]
            for index in self._order(seed, number):
                yield self._named(index, next(left[index]))

    def _named(self, index: int, example: Example) -> Example:
        return attrs.evolve(example, source=self.sources[index])


def _seed(seed: int, index: int) -> int:
    return int(np.random.SeedSequence((5, seed, index)).generate_state(1)[0])
