"""Ports of tasks, which provide examples and score answers, and of the tokenized prompts of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import attrs

from hooktrainer.ports.groups import Example, Prompt, Tokens


@attrs.frozen(eq=False)
class Answer:
    """An answer to be scored."""

    text: str
    """Text up to the end token, without special tokens."""
    tokens: Tokens
    """Tokens as they were sampled, shape (T,)."""
    truncated: bool = False
    """Whether the answer was cut off at `rollout.max_response_length`."""


@attrs.frozen
class Score:
    """The score of one answer."""

    value: float
    """Any finite number; more is better."""
    exact: bool | None = None
    """Whether the answer has full marks; None compares the value with 1."""
    metrics: Mapping[str, float] = attrs.field(factory=dict)
    """Further numbers to report for the answer, by name."""


@runtime_checkable
class Task(Protocol):
    """Examples whose answers can be scored."""

    @property
    def size(self) -> int | None:
        """Number of examples of one epoch; None if it is endless."""
        ...

    def train(self, seed: int) -> Iterator[Example]:
        """Yield the training examples of an epoch."""
        ...

    def heldout(self, size: int) -> Sequence[Example]:
        """Return at most `size` fixed examples that `train` never yields."""
        ...

    def score(self, example: Example, answers: Sequence[Answer]) -> Sequence[float | Score]:
        """Return the score of each answer to an example: a finite number, or a `Score`."""
        ...


@runtime_checkable
class CharacterTask(Task, Protocol):
    """A task over a small alphabet, which the character tokenizer of the built-in model reads."""

    @property
    def alphabet(self) -> str:
        """Characters of prompts and answers."""
        ...

    @property
    def longest_prompt(self) -> int:
        """Number of characters of the longest prompt, the default of `rollout.max_prompt_length`."""
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

    def take_metrics(self) -> Mapping[str, object]:
        """Return the metrics since the last call."""
        ...

    def state_dict(self) -> Mapping[str, object]:
        """Return the position in the training prompts."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the position. Raises `CheckpointError` if the prompts at this position differ."""
        ...
