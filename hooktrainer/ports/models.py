"""Ports of a model: the tokenizer that belongs to it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol, runtime_checkable

from hooktrainer.ports.groups import Messages, Tokens


@runtime_checkable
class Tokenizer(Protocol):
    """Converts prompts to tokens and answers to text. It is picklable, for worker processes."""

    @property
    def vocab_size(self) -> int:
        """Number of tokens, special ones included."""
        ...

    @property
    def pad_id(self) -> int:
        """Token that fills rows of different lengths; no result depends on it."""
        ...

    @property
    def eos_ids(self) -> Collection[int]:
        """Tokens that end an answer."""
        ...

    def encode(self, prompt: str | Messages) -> Tokens:
        """Return the tokens of a prompt, ready to be answered. Raises `ConfigError` if it cannot be encoded."""
        ...

    def decode(self, tokens: Tokens) -> str:
        """Return the text of an answer up to its first end token, as a reward function reads it."""
        ...
