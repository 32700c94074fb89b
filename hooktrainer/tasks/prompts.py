"""The tokenized prompts of a run, over all epochs of a task."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from hooktrainer.errors import CheckpointError
from hooktrainer.ports import Prompt, Task
from hooktrainer.tasks.tokenizer import CharTokenizer


class TaskPrompts:
    """Implementation of `hooktrainer.ports.PromptSource` for a task.

    Epochs follow each other without a gap, each with its own seed.
    """

    def __init__(self, task: Task, tokenizer: CharTokenizer, *, seed: int, total_epochs: int = 1) -> None:
        self._task = task
        self._tokenizer = tokenizer
        self._seed = seed
        self._total_epochs = total_epochs
        self._epoch = 0  # of the last prompt taken
        self._given = 0  # prompts taken from that epoch
        self._last: tuple[str, str] | None = None
        self._stream: Iterator[tuple[int, tuple[str, str]]] = iter(())  # (epoch, prompt)
        self._ahead: list[tuple[int, tuple[str, str]]] = []
        self._seek(0, 0)

    @property
    def exhausted(self) -> bool:
        """Whether no training prompt is left."""
        return not self._ahead

    def take(self, count: int) -> Sequence[Prompt]:
        """Return the next `count` training prompts; fewer at the end of the data."""
        found = self._ahead + list(itertools.islice(self._stream, count))
        self._ahead = found[count:]
        for epoch, pair in found[:count]:
            self._given = self._given + 1 if epoch == self._epoch else 1
            self._epoch, self._last = epoch, pair
        return self._tokenized([pair for _, pair in found[:count]])

    def heldout(self, count: int) -> Sequence[Prompt]:
        """Return the first `count` held-out prompts; always the same ones."""
        return self._tokenized(self._task.heldout(count))

    def state_dict(self) -> Mapping[str, object]:
        """Return the position in the data, and the last prompt taken."""
        return {"epoch": self._epoch, "given": self._given, "last": self._last}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the position. Raises `CheckpointError` if the data has another prompt there."""
        epoch, given, last = state["epoch"], state["given"], state["last"]
        if given:
            self._seek(epoch, given - 1)
            found = next(((text, truth) for place, (text, truth) in self._ahead if place == epoch), None)
            if found != last:
                raise CheckpointError(
                    f"prompt {given} of epoch {epoch + 1} was {last!r} when the checkpoint was made, and is {found!r} "
                    "now: the task, its options or the seed changed. Resume with the same ones, or start a new run."
                )
        self._seek(epoch, given)
        self._epoch, self._given, self._last = epoch, given, last

    def _seek(self, epoch: int, given: int) -> None:
        self._stream = itertools.islice(self._pairs(epoch), given, None)
        self._ahead = list(itertools.islice(self._stream, 1))

    def _pairs(self, first: int) -> Iterator[tuple[int, tuple[str, str]]]:
        for epoch in range(first, self._total_epochs):
            for text, truth in self._task.train(_epoch_seed(self._seed, epoch)):
                yield epoch, (text, truth)

    def _tokenized(self, pairs: Sequence[tuple[str, str]]) -> Sequence[Prompt]:
        return tuple(Prompt(text, self._tokenizer.encode(text), truth) for text, truth in pairs)


def _epoch_seed(seed: int, epoch: int) -> int:
    return int(np.random.SeedSequence((seed, epoch)).generate_state(1)[0])
