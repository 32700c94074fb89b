"""Ports of tasks, which provide examples and score answers, and of the tokenized prompts of a run."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping, Sequence
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
    version: int = 0
    """Version of the weights that its first token was sampled from: the steps that were complete then."""
    turn: int = 0
    """Number of the turn, from 0; see `hooktrainer.ports.Environment`."""
    last: bool = True
    """Whether no turn can follow."""


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

    def train(self, seed: int) -> Iterable[Example]:
        """Return the training examples of an epoch. A resumed run does not read those that it skips in a sequence."""
        ...

    def heldout(self, size: int) -> Sequence[Example]:
        """Return at most `size` fixed examples that `train` never yields."""
        ...

    def score(
        self, example: Example, answers: Sequence[Answer]
    ) -> Sequence[float | Score] | Awaitable[Sequence[float | Score]]:
        """Return the score of each answer to an example: a finite number, or a `Score`. It may be asynchronous.

        It is called from several threads at once, unless `reward.workers` is 1.
        """
        ...


@runtime_checkable
class HasFingerprint(Protocol):
    """A task whose data is stored, so that a resumed run can check that it is the same."""

    def fingerprint(self) -> Mapping[str, str]:
        """Return checksums of the data, by the name of each part."""
        ...


@runtime_checkable
class HasSources(Protocol):
    """A task of several tasks, whose scores are reported for each."""

    @property
    def sources(self) -> Sequence[str]:
        """Values of `Example.source`, which are the names of the tasks in metrics."""
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
