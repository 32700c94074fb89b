"""Load a model of transformers and its tokenizer from a folder or the cache of the hub."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
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
from transformers.utils import logging as progress

from hooktrainer.errors import ConfigError, Fault, line_of
from hooktrainer.models.huggingface_files import GENERATION, model_folder, read_template
from hooktrainer.models.huggingface_tokenizer import HuggingFaceTokenizer

_LOG: Final = logging.getLogger("hooktrainer")
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
        made = HuggingFaceTokenizer(tokenizer, eos_ids=self._end_tokens(tokenizer), chat=chat)
        try:
            made.encode("?")
        except ConfigError as error:
            error.place("model.chat_template")
            raise
        return made

    def model(self, attention: str) -> PreTrainedModel:
        """Return the causal language model in float32. Raises `ConfigError` if a weight is missing or not finite."""
        settings = {} if attention == "auto" else {"attn_implementation": attention}
        reported = {"output_loading_info": True, "ignore_mismatched_sizes": True}  # both are refused below
        model, loaded = self._load(AutoModelForCausalLM, dtype=torch.float32, **reported, **settings)
        assert isinstance(model, PreTrainedModel)
        if missing := sorted({*loaded["missing_keys"], *(key for key, *_ in loaded["mismatched_keys"])}):
            found = f"the files of {self.path!r} lack {len(missing)} weights of the model, such as {missing[0]!r}"
            text = f"{found}, which would be random. The files, or the configuration, are of another model"
            raise ConfigError([Fault("model.path", text)])
        _warn_of_unused(self.path, tuple(sorted(loaded["unexpected_keys"])))
        bad = next((name for name, weight in model.named_parameters() if not bool(torch.isfinite(weight).all())), None)
        if bad is not None:
            text = f"the weight {bad!r} of {self.path!r} has values that are NaN or infinite"
            raise ConfigError([Fault("model.path", text)])
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
        if (model_folder(self.path) / GENERATION).exists():
            found.append(self._load(GenerationConfig).eos_token_id)
        for ends in found:
            yield from [] if ends is None else ends if isinstance(ends, (list, tuple)) else [ends]


@functools.cache  # engines load the model too
def _warn_of_unused(path: str, names: tuple[str, ...]) -> None:
    if names:
        unused = "weights that the model does not use"
        _LOG.warning("the files of %r have %d %s, such as %r", path, len(names), unused, names[0])


@contextmanager
def no_progress_bars() -> Iterator[None]:
    """Let transformers show no progress bars."""
    shown = progress.is_progress_bar_enabled()
    progress.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        if shown:
            progress.enable_progress_bar()  # type: ignore[no-untyped-call]
