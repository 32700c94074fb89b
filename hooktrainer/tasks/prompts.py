"""The prompts of a run: a task's texts, tokenized, with its epochs joined."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from hooktrainer.groups import Prompt
from hooktrainer.ports import Task
from hooktrainer.tasks.tokenizer import CharTokenizer


class TaskPrompts:
    """Prompts of a task; epochs follow each other without a gap, each in an order of its own."""

    def __init__(self, task: Task, tokenizer: CharTokenizer, *, seed: int, total_epochs: int = 1) -> None:
        self._task = task
        self._tokenizer = tokenizer
        epochs = (task.train(_epoch_seed(seed, epoch)) for epoch in range(total_epochs))
        self._stream = itertools.chain.from_iterable(epochs)
        self._ahead = list(itertools.islice(self._stream, 1))

    @property
    def exhausted(self) -> bool:
        """Whether `take` has nothing more to give."""
        return not self._ahead

    def take(self, count: int) -> Sequence[Prompt]:
        """The next `count` training prompts; fewer at the end of the data."""
        pairs = self._ahead + list(itertools.islice(self._stream, count))
        self._ahead = pairs[count:]
        return self._tokenized(pairs[:count])

    def heldout(self, count: int) -> Sequence[Prompt]:
        """The first `count` held-out prompts; always the same ones."""
        return self._tokenized(self._task.heldout(count))

    def _tokenized(self, pairs: Sequence[tuple[str, str]]) -> Sequence[Prompt]:
        return tuple(Prompt(text, self._tokenizer.encode(text), truth) for text, truth in pairs)


def _epoch_seed(seed: int, epoch: int) -> int:
    return int(np.random.SeedSequence((seed, epoch)).generate_state(1)[0])
