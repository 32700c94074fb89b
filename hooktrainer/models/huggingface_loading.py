"""Load a model of transformers and its tokenizer from a folder or the cache of the hub."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hooktrainer.errors import ConfigError, Fault, line_of
from hooktrainer.models.huggingface_tokenizer import HuggingFaceTokenizer

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel

    from hooktrainer.models.huggingface_options import HuggingFaceOptions

_MAX_PADDING: Final = 1024
"""Rows of an embedding beyond the tokens of the tokenizer, which models have for alignment."""


def load_tokenizer(options: HuggingFaceOptions) -> HuggingFaceTokenizer:
    """Return the tokenizer of a model, with the end tokens of its generation settings."""
    from transformers import AutoTokenizer

    tokenizer = _loaded(AutoTokenizer, options)
    if options.chat_template not in ("auto", "none"):
        tokenizer.chat_template = _template(options.chat_template)
    chat = options.chat_template != "none" and bool(tokenizer.chat_template)
    return HuggingFaceTokenizer(tokenizer, eos_ids=_end_tokens(tokenizer, options), chat=chat)


def build_policy(options: HuggingFaceOptions, *, vocab_size: int, max_length: int, seed: int) -> nn.Module:
    """Return a policy that decodes as the plain model does; raises `ConfigError` if that is impossible."""
    from hooktrainer.models.huggingface import HuggingFacePolicy
    from hooktrainer.models.lora import add_lora
    from hooktrainer.models.probe import check_policy

    lm = load_model(options)
    _check_sizes(lm.config.get_text_config(), options, vocab_size, max_length)
    policy = HuggingFacePolicy(lm, options.dtype)
    check_policy(policy)
    if options.lora is not None:
        try:
            add_lora(policy, targets=options.lora.targets, rank=options.lora.rank, alpha=options.lora.alpha, seed=seed)
        except (TypeError, ValueError) as error:
            raise ConfigError([Fault("model.lora", str(error))]) from None
    return policy


def _check_sizes(config: Any, options: HuggingFaceOptions, vocab_size: int, max_length: int) -> None:
    if not vocab_size <= config.vocab_size <= vocab_size + _MAX_PADDING:
        found = f"the model {options.path!r} has {config.vocab_size} tokens, and its tokenizer {vocab_size}"
        raise ConfigError([Fault("model.path", f"{found}. Use the tokenizer that the model was trained with")])
    longest = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None)
    if longest is not None and max_length > longest:
        found = (
            f"prompts and answers have up to {max_length} tokens, and the model {options.path!r} {longest} positions"
        )
        raise ConfigError([Fault("rollout", f"{found}. Lower max_prompt_length or max_response_length")])


def load_model(options: HuggingFaceOptions) -> PreTrainedModel:
    """Return a causal language model in float32."""
    import torch
    from transformers import AutoModelForCausalLM

    attention = {} if options.attention == "auto" else {"attn_implementation": options.attention}
    model = _loaded(AutoModelForCausalLM, options, dtype=torch.float32, **attention)
    if options.gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model  # type: ignore[no-any-return]


def _loaded(auto: Any, options: HuggingFaceOptions, **settings: Any) -> Any:
    try:
        return auto.from_pretrained(
            options.path, trust_remote_code=options.trust_remote_code, local_files_only=True, **settings
        )
    except Exception as error:
        found = f"{options.path!r} cannot be loaded: {line_of(error).splitlines()[0]}"
        remedy = "Give the folder of a model, or the name of one in the cache of the hub (`hf download NAME`)"
        raise ConfigError([Fault("model.path", f"{found}. {remedy}")]) from error


def _template(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        text = f"{path!r} cannot be read: {error}. It is auto, none, or the path of a file with a Jinja template"
        raise ConfigError([Fault("model.chat_template", text)]) from None


def _end_tokens(tokenizer: Any, options: HuggingFaceOptions) -> Iterable[int]:
    """Yield every token that ends an answer: of the tokenizer, the configuration and the generation settings."""
    from transformers import AutoConfig, GenerationConfig

    found = [tokenizer.eos_token_id, _loaded(AutoConfig, options).eos_token_id]
    try:
        found.append(GenerationConfig.from_pretrained(options.path, local_files_only=True).eos_token_id)
    except OSError:  # a model without generation settings
        pass
    for ends in found:
        yield from [] if ends is None else ends if isinstance(ends, (list, tuple)) else [ends]
