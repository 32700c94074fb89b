"""Load a model of transformers and its tokenizer from a folder or the cache of the hub."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

import attrs
import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging

from hooktrainer.errors import ConfigError, Fault, line_of
from hooktrainer.models.huggingface_files import read_template
from hooktrainer.models.huggingface_tokenizer import HuggingFaceTokenizer

_MAX_PADDING: Final = 1024
"""Rows of an embedding beyond the tokens of the tokenizer, which models have for alignment."""


@attrs.frozen
class Source:
    """Where a model is loaded from."""

    path: str
    """A folder, or a name in the cache of the hub."""
    trust_remote_code: bool

    def tokenizer(self, chat_template: str) -> HuggingFaceTokenizer:
        """Return the tokenizer, with the end tokens of the generation settings of the model."""
        tokenizer = self._load(AutoTokenizer)
        if chat_template not in ("auto", "none"):
            tokenizer.chat_template = read_template(chat_template)
        chat = chat_template != "none" and bool(tokenizer.chat_template)
        return HuggingFaceTokenizer(tokenizer, eos_ids=self._end_tokens(tokenizer), chat=chat)

    def model(self, attention: str) -> PreTrainedModel:
        """Return the causal language model in float32."""
        settings = {} if attention == "auto" else {"attn_implementation": attention}
        model = self._load(AutoModelForCausalLM, dtype=torch.float32, **settings)
        assert isinstance(model, PreTrainedModel)
        return model

    def check_sizes(self, lm: PreTrainedModel, *, vocab_size: int, max_length: int) -> None:
        """Raise `ConfigError` unless the model has the tokens of its tokenizer and enough positions."""
        config: Any = lm.config.get_text_config()
        if not vocab_size <= config.vocab_size <= vocab_size + _MAX_PADDING:
            found = f"the model {self.path!r} has {config.vocab_size} tokens, and its tokenizer {vocab_size}"
            raise ConfigError([Fault("model.path", f"{found}. Use the tokenizer that the model was trained with")])
        longest = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None)
        if longest is not None and max_length > longest:
            found = f"prompts and answers have up to {max_length} tokens, and the model {self.path!r} has {longest}"
            text = f"{found} positions. Lower max_prompt_length or max_response_length"
            raise ConfigError([Fault("rollout", text)])

    def _load(self, auto: Any, **settings: Any) -> Any:
        try:
            with no_progress_bars():
                return auto.from_pretrained(
                    self.path, trust_remote_code=self.trust_remote_code, local_files_only=True, **settings
                )
        except Exception as error:
            found = f"{self.path!r} cannot be loaded: {line_of(error).splitlines()[0]}"
            remedy = "Give the folder of a model, or the name of one in the cache of the hub (`hf download NAME`)"
            raise ConfigError([Fault("model.path", f"{found}. {remedy}")]) from error

    def _end_tokens(self, tokenizer: PreTrainedTokenizerBase) -> Iterable[int]:
        """Yield every token that ends an answer: of the tokenizer, the configuration and the generation settings."""
        found: list[Any] = [tokenizer.eos_token_id, self._load(AutoConfig).eos_token_id]
        with suppress(OSError):  # a model without generation settings
            found.append(GenerationConfig.from_pretrained(self.path, local_files_only=True).eos_token_id)
        for ends in found:
            yield from [] if ends is None else ends if isinstance(ends, (list, tuple)) else [ends]


@contextmanager
def no_progress_bars() -> Iterator[None]:
    """Let transformers show no progress bars."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]
