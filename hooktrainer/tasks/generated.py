"""Base of tasks whose prompts a random generator draws: train and held-out split, epochs and partial credit."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterator, Sequence
from typing import Final

import attrs
import numpy as np
from attrs.validators import ge, instance_of, le, optional

from hooktrainer.errors import ConfigError
from hooktrainer.ports import Answer, Example

HELDOUT_SHARE: Final = 8
"""One prompt in this many is held out, by a checksum of its text, so that the sets are disjoint for every seed."""
MAX_SIZE: Final = 10_000_000
"""Prompts of an epoch, which are drawn before the first one is used."""
_MAX_REPEATED: Final = 1000
"""Repeated held-out prompts in a row after which the held-out set is considered complete."""
MAX_OTHER_SET: Final = 10_000
"""Prompts in a row of the other set after which this set is considered empty."""


@attrs.frozen(kw_only=True)
class GeneratedTask:
    """Base of tasks that draw their prompts. A task defines `alphabet`, `longest_prompt` and `draw`."""

    size: int | None = attrs.field(default=None, validator=optional([instance_of(int), ge(1), le(MAX_SIZE)]))
    """Prompts of one epoch, at most ten million, since they are held in memory. Every epoch has the same prompts in a
    different order. Endless if left out."""

    def draw(self, rng: np.random.Generator) -> tuple[str, str]:
        """Draw one prompt with its answer: (text, truth)."""
        raise NotImplementedError

    def train(self, seed: int) -> Iterator[Example]:
        """Yield training examples. `seed` determines the prompts, or only their order with `size`."""
        if self.size is None:
            pairs = self._split(np.random.default_rng((1, seed)), heldout=False)
            yield from (_example(number, pair) for number, pair in enumerate(pairs))
        else:
            prompts = list(itertools.islice(self._split(np.random.default_rng(1), heldout=False), self.size))
            for place in np.random.default_rng((2, seed)).permutation(len(prompts)).tolist():
                yield _example(place, prompts[place])

    def heldout(self, size: int) -> Sequence[Example]:
        """Return the first `size` held-out examples, all different; fewer if the task has fewer."""
        found: dict[str, str] = {}
        repeated = 0
        for text, truth in self._split(np.random.default_rng(0), heldout=True):
            if len(found) == size or repeated == _MAX_REPEATED:
                break
            repeated = repeated + 1 if text in found else 0
            found[text] = truth
        return tuple(_example(number, pair) for number, pair in enumerate(found.items()))

    def score(self, example: Example, answers: Sequence[Answer]) -> Sequence[float]:
        """Return the grade of each answer."""
        return [self.grade(example.row["truth"], answer.text) for answer in answers]

    def grade(self, truth: str, answer: str) -> float:
        """Return the share of correct positions, relative to the longer of both texts."""
        right = sum(one == other for one, other in zip(truth, answer, strict=False))
        return right / max(len(truth), len(answer), 1)

    def _split(self, rng: np.random.Generator, *, heldout: bool) -> Iterator[tuple[str, str]]:
        other_set = 0
        while other_set < MAX_OTHER_SET:
            text, truth = self.draw(rng)
            other_set = other_set + 1 if is_heldout(text) != heldout else 0
            if not other_set:
                yield text, truth
        expected, other = ("held-out", "training") if heldout else ("training", "held-out")
        raise ConfigError(
            f"{self} has no {expected} prompts: {MAX_OTHER_SET} drawn in a row were all {other} ones. One prompt in "
            f"{HELDOUT_SHARE} is held out, by its text, so a task needs many different prompts"
        )


def _example(number: int, pair: tuple[str, str]) -> Example:
    text, truth = pair
    return Example(text, {"truth": truth}, number)


def is_heldout(text: str) -> bool:
    """Return whether a prompt is held out, by a checksum of its text."""
    return zlib.crc32(text.encode()) % HELDOUT_SHARE == 0
