"""The procedural tasks of the library reasoning-gym, each with its own scorer."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any, Final

import attrs
import numpy as np
from attrs.validators import ge, instance_of, le, optional

from hooktrainer.errors import ConfigError, RolloutError, did_you_mean, line_of, message_of, shortened
from hooktrainer.ports import Answer, Example
from hooktrainer.tasks.examples import LazyExamples
from hooktrainer.tasks.generated import HELDOUT_SHARE, MAX_OTHER_SET, is_heldout

_CHUNK: Final = 1000
"""Entries that are generated from one seed of the library."""
_MAX_SIZE: Final = 1_000_000


def _is_known(_task: ReasoningGym, _field: object, name: str) -> None:
    known = _datasets()
    if name not in known:
        text = f"reasoning-gym has no task '{name}'; it has {len(known)}, such as spell_backward and leg_counting"
        raise ConfigError(f"{text}.{did_you_mean(name, known)}")


def _are_accepted(task: ReasoningGym, _field: object, args: Mapping[str, Any]) -> None:
    if task.name not in _datasets():
        return
    fields = [field.name for field in dataclasses.fields(_datasets()[task.name][1])]
    known = [name for name in fields if name not in {"seed", "size"}]
    for key in args:
        if key in {"seed", "size"}:
            raise ConfigError(f"'{key}' is set by this task itself; use `size` of the task, and `seed` of the run")
        if key not in known:
            text = f"{task.name} has no option '{key}'; it has {', '.join(known) or 'none'}"
            raise ConfigError(f"{text}.{did_you_mean(key, known)}")
    try:
        task.dataset(0)
    except Exception as error:  # options are checked by assertions of the library
        text = f"{task.name} refuses its options {dict(args)}: {message_of(error) or type(error).__name__}"
        raise ConfigError(text) from error


@attrs.frozen(kw_only=True, slots=False)
class ReasoningGym:
    """A procedural task of reasoning-gym, which generates questions and scores answers."""

    name: str = attrs.field(validator=[instance_of(str), _is_known])
    """Name of the task in reasoning-gym, such as `spell_backward`."""
    args: Mapping[str, Any] = attrs.field(factory=dict, validator=_are_accepted)
    """Options of the task in reasoning-gym, such as `max_word_len`."""
    size: int | None = attrs.field(default=None, validator=optional([instance_of(int), ge(1), le(_MAX_SIZE)]))
    """Questions of one epoch. Every epoch has the same ones in a different order. Endless if left out."""

    def dataset(self, seed: int) -> Any:
        """Return the dataset of the library for a seed."""
        return _dataset(self.name, seed, json.dumps(dict(self.args), sort_keys=True))

    def train(self, seed: int) -> Sequence[Example] | Iterator[Example]:
        """Return training examples. `seed` determines the questions, or only their order with `size`."""
        if self.size is None:
            places = self._places(_seeds(1, seed), heldout=False)
            return (self._example(number, place) for number, place in enumerate(places))
        order = np.random.default_rng((2, seed)).permutation(len(self._fixed))
        return LazyExamples(len(order), lambda index: self._example(int(order[index]), self._fixed[order[index]]))

    def heldout(self, size: int) -> Sequence[Example]:
        """Return the first `size` held-out examples, all different; fewer if the task has fewer."""
        found: dict[str, Example] = {}
        repeated = 0
        for place in self._places(_seeds(0, 0), heldout=True):
            if len(found) == size or repeated == _CHUNK:
                break
            example = self._example(len(found), place)
            repeated = repeated + 1 if example.text in found else 0
            found.setdefault(example.text, example)
        return tuple(found.values())

    def score(self, example: Example, answers: Sequence[Answer]) -> Sequence[float]:
        """Return the score that reasoning-gym gives each answer, without blanks at its ends."""
        seed, index = example.row["seed"], example.row["index"]
        dataset = self.dataset(seed)
        entry = dataset[index]
        return [self._graded(dataset, entry, example, answer) for answer in answers]

    @cached_property
    def _fixed(self) -> Sequence[tuple[int, int]]:
        return list(itertools.islice(self._places(_seeds(1, 0), heldout=False), self.size))

    def _places(self, seeds: Iterator[int], *, heldout: bool) -> Iterator[tuple[int, int]]:
        """Yield the seed and the index of each entry of a set."""
        others = 0
        for seed in seeds:
            dataset = self.dataset(seed)
            for index in range(_CHUNK):
                belongs = is_heldout(dataset[index]["question"]) == heldout
                others = 0 if belongs else others + 1
                if belongs:
                    yield seed, index
                elif others == MAX_OTHER_SET:
                    kind = "held-out" if heldout else "training"
                    text = f"{self.name} has no {kind} questions: {MAX_OTHER_SET} in a row were of the other set"
                    raise ConfigError(f"{text}. One in {HELDOUT_SHARE} is held out, so it needs many questions")

    def _example(self, number: int, place: tuple[int, int]) -> Example:
        seed, index = place
        entry = self.dataset(seed)[index]
        row = {"seed": seed, "index": index, "truth": None if entry["answer"] is None else str(entry["answer"])}
        return Example(str(entry["question"]), row, number)

    def _graded(self, dataset: Any, entry: Mapping[str, Any], example: Example, answer: Answer) -> float:
        try:
            return float(dataset.score_answer(answer.text.strip(), entry))
        except Exception as error:
            found = f"the scorer of {self.name} raised {line_of(error)}"
            where = f"the answer {shortened(answer.text, 200)!r} to {shortened(example.text, 200)!r}"
            raise RolloutError(f"{found}; this was for {where}") from error


def _seeds(kind: int, seed: int) -> Iterator[int]:
    """Yield the seeds of the chunks of a set."""
    for chunk in itertools.count():
        yield int(np.random.SeedSequence((kind, seed, chunk)).generate_state(1)[0])


@lru_cache(maxsize=32)
def _dataset(name: str, seed: int, args: str) -> Any:
    from reasoning_gym.factory import create_dataset

    return create_dataset(name, seed=seed, size=_CHUNK, **json.loads(args))


def _datasets() -> Mapping[str, Any]:
    """Return the classes of all tasks by name. Raises `ConfigError` if the library is not installed."""
    try:
        from reasoning_gym.factory import DATASETS
    except ImportError as error:
        text = "the task reasoning_gym needs the library, which is not installed: pip install 'hooktrainer[tasks]'"
        raise ConfigError(text) from error
    found: Mapping[str, Any] = DATASETS
    return found
