"""The tokenizer of a Hugging Face model folder."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any, Final

import numpy as np
from transformers import PreTrainedTokenizerBase

from hooktrainer.errors import ConfigError, line_of, shortened
from hooktrainer.ports import Messages, Observation, Tokens

_TURN: Final = "<the turn of the policy>"
"""Content of a turn whose place in the text of a chat template is searched for."""
_LONGEST: Final = 100
"""Characters of a message in an error."""


class HuggingFaceTokenizer:
    """A tokenizer of transformers, with a chat template if there is one; see `hooktrainer.ports.Tokenizer`.

    With a template, a plain text is the message of a user. Without one, messages are refused.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, *, eos_ids: Iterable[int], chat: bool) -> None:
        ends = frozenset(eos_ids)
        if not ends:
            raise ConfigError("the tokenizer has no end token, so that no answer can end; set its `eos_token`")
        self._tokenizer = tokenizer
        if not all(0 <= end < self.vocab_size for end in ends):
            found = f"the model ends answers with the tokens {sorted(ends)}, and its tokenizer has {self.vocab_size}"
            raise ConfigError(f"{found}. Correct `eos_token_id` in config.json or generation_config.json")
        self._chat = chat
        self._special = frozenset(tokenizer.all_special_ids) | ends
        self.eos_ids: Final = ends
        self.pad_id: Final[int] = min(ends) if tokenizer.pad_token_id is None else int(tokenizer.pad_token_id)

    def save(self, folder: Path) -> None:
        """Write the tokenizer into a folder, with the chat template that it applies."""
        saved = copy.deepcopy(self._tokenizer)
        if not self._chat:
            saved.chat_template = None
        saved.save_pretrained(folder)

    @property
    def vocab_size(self) -> int:
        """Number of tokens: the largest id plus 1."""
        return max(self._tokenizer.get_vocab().values()) + 1

    def encode(self, prompt: str | Messages) -> Tokens:
        """Return the tokens of a prompt. Raises `ConfigError` for messages if there is no chat template."""
        if self._chat:
            text = self._applied(_messages(prompt), "messages of a prompt")
            ids = self._tokenizer.encode(text, add_special_tokens=False)  # the template writes special tokens
        elif isinstance(prompt, str):
            ids = self._tokenizer.encode(prompt)
        else:
            raise ConfigError(
                "the prompt is a list of messages, and the tokenizer has no chat template. Give model.chat_template a "
                "file with one, or prompts that are texts"
            )
        return np.array(ids, dtype=np.int64)

    def encode_observation(self, observation: Observation) -> Tokens:
        """Return what the chat template writes between a turn and the next one; a plain text is of a user.

        Without a template, it is the text.
        """
        if self._chat:
            before = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _TURN}]
            text = self._applied([*before, *_messages(observation)], "an observation")
            _, found, after = text.partition(_TURN)
            if not found:
                raise ConfigError("the chat template leaves out earlier turns, so that no observation can follow them")
        elif isinstance(observation, str):
            after = observation
        else:
            raise ConfigError("the observation is a list of messages, and the tokenizer has no chat template")
        ids = self._tokenizer.encode(after, add_special_tokens=False)
        # The turn ended with an end token, which the template writes too.
        return np.array(ids[1:] if self._chat and ids and ids[0] in self.eos_ids else ids, dtype=np.int64)

    def _applied(self, messages: Any, what: str) -> str:
        """Return the text of messages. Raises `ConfigError` if the template refuses them."""
        try:
            return str(self._tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False))
        except Exception as error:
            raise ConfigError(f"the chat template cannot write {what}: {line_of(error)}") from error

    def decode(self, tokens: Tokens) -> str:
        """Return the text up to the first end token, without special tokens."""
        text = self._tokenizer.decode(_until(tokens.tolist(), self.eos_ids), skip_special_tokens=True)
        assert isinstance(text, str)
        return text


def _messages(found: str | Messages) -> Messages:
    """Return a text as the message of a user. Raises `ConfigError` for a message without a role or a text."""
    if isinstance(found, str):
        return [{"role": "user", "content": found}]
    for message in found:
        if not isinstance(message.get("role"), str):
            raise ConfigError(f"the message {shortened(repr(message), _LONGEST)} has no role")
        if isinstance(message.get("content"), list):
            raise ConfigError(f"the content of the message {shortened(repr(message), _LONGEST)} is not a text")
    return list(found)


def _until(ids: list[int], ends: Collection[int]) -> list[int]:
    return ids[: next((place for place, token in enumerate(ids) if token in ends), len(ids))]
