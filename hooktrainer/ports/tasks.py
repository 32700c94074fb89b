"""Ports of tasks, which provide prompts and scores, and of the tokenized prompts of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from hooktrainer.ports.groups import Prompt


@runtime_checkable
class Task(Protocol):
    """Prompts whose answers can be scored."""

    @property
    def alphabet(self) -> str:
        """Characters of prompts and answers."""
        ...

    @property
    def longest_prompt(self) -> int:
        """Number of characters of the longest prompt."""
        ...

    @property
    def size(self) -> int | None:
        """Number of prompts of one epoch; None if it is endless."""
        ...

    def train(self, seed: int) -> Iterator[tuple[str, str]]:
        """Yield the training prompts of an epoch as pairs (text, truth); `score` gets the truth."""
        ...

    def heldout(self, size: int) -> Sequence[tuple[str, str]]:
        """Return at most `size` fixed pairs (text, truth) that `train` never yields."""
        ...

    def score(self, truth: str, answer: str) -> float:
        """Return a score in [0, 1], which may be partial credit; 1 only for an exact answer.

        A score within `SCORE_TOLERANCE` of 0 or 1 counts as 0 or 1, so that rounding errors of a sum do not matter.
        """
        ...


@runtime_checkable
class PromptSource(Protocol):
    """The tokenized prompts of a run: training prompts of all epochs, and a fixed held-out set."""

    @property
    def exhausted(self) -> bool:
        """Whether no training prompt is left."""
        ...

    def take(self, count: int) -> Sequence[Prompt]:
        """Return the next `count` training prompts; fewer at the end of the data."""
        ...

    def heldout(self, count: int) -> Sequence[Prompt]:
        """Return the first `count` held-out prompts, always the same ones; fewer if there are fewer."""
        ...

    def state_dict(self) -> Mapping[str, object]:
        """Return the position in the training prompts."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the position. Raises `CheckpointError` if the prompts at this position differ."""
        ...
