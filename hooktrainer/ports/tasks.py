"""Tasks: where prompts and scores come from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from hooktrainer.ports.groups import Prompt


@runtime_checkable
class Task(Protocol):
    """Prompts with verifiable answers."""

    @property
    def alphabet(self) -> str:
        """Characters that prompts and answers are made of."""
        ...

    @property
    def longest_prompt(self) -> int:
        """Characters of the longest prompt."""
        ...

    @property
    def size(self) -> int | None:
        """Prompts of one epoch; None if it has no end."""
        ...

    def train(self, seed: int) -> Iterator[tuple[str, str]]:
        """Prompts with what a verifier compares with: (text, truth); finite if the task is."""
        ...

    def heldout(self, size: int) -> Sequence[tuple[str, str]]:
        """Fixed prompts that `train` never gives."""
        ...

    def score(self, truth: str, answer: str) -> float:
        """Partial credit in [0, 1]; 1 only for an exact answer."""
        ...


@runtime_checkable
class PromptSource(Protocol):
    """The prompts of a run, tokenized: a training stream with its epochs joined, and a fixed held-out set."""

    @property
    def exhausted(self) -> bool:
        """Whether `take` has nothing more to give."""
        ...

    def take(self, count: int) -> Sequence[Prompt]:
        """The next `count` training prompts; fewer at the end of the data."""
        ...

    def heldout(self, count: int) -> Sequence[Prompt]:
        """The first `count` held-out prompts; always the same ones."""
        ...

    def state_dict(self) -> Mapping[str, object]:
        """How far `take` has come."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there. Raises `CheckpointError` if the prompts up to there are others."""
        ...
