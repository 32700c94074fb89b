"""A character tokenizer for tasks over a small alphabet."""

from __future__ import annotations

import reprlib
from typing import Final

import numpy as np

from hooktrainer.errors import ConfigError
from hooktrainer.ports import Messages, Observation, Tokens

UNREADABLE: Final = "\N{REPLACEMENT CHARACTER}"
"""Text of a special token within an answer, which matches no character of a correct answer."""


class CharTokenizer:
    """A tokenizer with padding, an end token, and one token per character; see `hooktrainer.ports.Tokenizer`."""

    pad_id: Final = 0
    eos_ids: Final = frozenset({1})

    def __init__(self, alphabet: str) -> None:
        if not alphabet or len(set(alphabet)) != len(alphabet):
            raise ConfigError(f"an alphabet needs at least one character, all different; found {alphabet!r}")
        self.alphabet: Final = alphabet
        self._ids = {char: number for number, char in enumerate(alphabet, start=2)}
        self._chars = (UNREADABLE, UNREADABLE, *alphabet)

    @property
    def vocab_size(self) -> int:
        """Number of tokens, special ones included."""
        return len(self._chars)

    def encode(self, prompt: str | Messages) -> Tokens:
        """Return the tokens of a text. Raises `ConfigError` for an unknown character, or for messages."""
        if not isinstance(prompt, str):
            raise ConfigError(f"a character tokenizer reads texts, found the messages {prompt!r}")
        try:
            return np.array([self._ids[char] for char in prompt], dtype=np.int64)
        except KeyError as error:
            raise ConfigError(f"{error} in {reprlib.repr(prompt)} is not in the alphabet {self.alphabet!r}") from None

    def encode_observation(self, observation: Observation) -> Tokens:
        """Return the tokens of a text, which follow the end token of a turn."""
        return self.encode(observation)

    def decode(self, tokens: Tokens) -> str:
        """Return the text up to the first end token."""
        chars = []
        for token in tokens.tolist():
            if token in self.eos_ids:
                break
            chars.append(self._chars[token])
        return "".join(chars)
