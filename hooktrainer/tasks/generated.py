"""What tasks with prompts out of a random generator share: splits, epochs and partial credit."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterator, Sequence
from typing import Final

import attrs
import numpy as np
from attrs.validators import ge, instance_of, optional

from hooktrainer.errors import ConfigError

HELDOUT_SHARE: Final = 8
"""One prompt in this many is held out, by a checksum of its text: whatever the seed, the sets cannot meet."""
_PATIENCE: Final = 1000
"""Held-out prompts in a row that were all known, after which there are no more."""
_ONE_SIDED: Final = 10_000
"""Prompts in a row that all belong to the other set, after which this one is empty."""


@attrs.frozen(kw_only=True)
class GeneratedTask:
    """Base of tasks that make up their prompts; a task adds `alphabet` and `draw`."""

    size: int | None = attrs.field(default=None, validator=optional([instance_of(int), ge(1)]))
    """Prompts of one epoch; every epoch has the same ones in another order. Endless if left out."""

    def draw(self, rng: np.random.Generator) -> tuple[str, str]:
        """One prompt with its answer: (text, truth)."""
        raise NotImplementedError

    def train(self, seed: int) -> Iterator[tuple[str, str]]:
        """Training prompts with their answers; `seed` decides which, or only their order if `size` is given."""
        if self.size is None:
            yield from self._split(np.random.default_rng((1, seed)), heldout=False)
        else:
            prompts = list(itertools.islice(self._split(np.random.default_rng(1), heldout=False), self.size))
            for place in np.random.default_rng((2, seed)).permutation(len(prompts)):
                yield prompts[place]

    def heldout(self, size: int) -> Sequence[tuple[str, str]]:
        """The first `size` held-out prompts, all different. Raises `ConfigError` if the task has not that many."""
        found: dict[str, str] = {}
        in_vain = 0
        for text, truth in self._split(np.random.default_rng(0), heldout=True):
            if len(found) == size or in_vain == _PATIENCE:
                break
            in_vain = in_vain + 1 if text in found else 0
            found[text] = truth
        if len(found) < size:
            raise ConfigError(f"{size} held-out prompts were asked for, but {self} has {len(found)}")
        return tuple(found.items())

    def score(self, truth: str, answer: str) -> float:
        """Share of the positions that are right, counted over the longer of both texts."""
        right = sum(one == other for one, other in zip(truth, answer, strict=False))
        return right / max(len(truth), len(answer), 1)

    def _split(self, rng: np.random.Generator, *, heldout: bool) -> Iterator[tuple[str, str]]:
        in_vain = 0
        while in_vain < _ONE_SIDED:
            text, truth = self.draw(rng)
            in_vain = in_vain + 1 if _is_heldout(text) != heldout else 0
            if not in_vain:
                yield text, truth
        wanted, other = ("held-out", "training") if heldout else ("training", "held-out")
        raise ConfigError(
            f"{self} has no {wanted} prompts: {_ONE_SIDED} drawn in a row were all {other} ones. One prompt in "
            f"{HELDOUT_SHARE} is held out, by its text, so a task needs a good many different prompts"
        )


def _is_heldout(text: str) -> bool:
    return zlib.crc32(text.encode()) % HELDOUT_SHARE == 0
