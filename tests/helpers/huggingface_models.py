"""Tiny models of transformers with random weights, and a tokenizer trained on a few texts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

VOCABULARY: Final = 300
PAD, EOS, END_OF_TURN = "<pad>", "<eos>", "<end_of_turn>"
POSITIONS: Final = 64
WINDOW: Final = 6
"""Tokens of a sliding window, fewer than a prompt of these tests has."""
_SIZES: Final = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": POSITIONS,
}
_EXPERTS: Final = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
_SMALL_HEADS: Final = {"head_dim": 8}
ARCHITECTURES: Final[Mapping[str, Mapping[str, Any]]] = {
    "llama": _SIZES,
    "qwen2": _SIZES,
    "qwen3": _SIZES | _SMALL_HEADS,
    "qwen3_moe": _SIZES | _SMALL_HEADS | _EXPERTS,
    "mistral": _SIZES | {"sliding_window": WINDOW},
    "gemma2": _SIZES | _SMALL_HEADS | {"sliding_window": WINDOW, "final_logit_softcapping": 5.0},
    "gemma3_text": _SIZES | _SMALL_HEADS | {"sliding_window": WINDOW},
    "phi3": _SIZES,
    "olmo2": _SIZES,
    "granite": _SIZES | {"logits_scaling": 4.0},
    "cohere": _SIZES | {"logit_scale": 0.25},
    "gpt_neox": _SIZES,
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": POSITIONS},
}
"""Options of a small model of each architecture, by its name in transformers."""
CHAT: Final = (
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}<end_of_turn>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def language_model(architecture: str = "llama", attention: str | None = None, **options: Any) -> PreTrainedModel:
    """Return a model whose logits are far from uniform, so that wrong masks, windows and scales show."""
    sizes = {"vocab_size": VOCABULARY, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 1}
    config = AutoConfig.for_model(architecture, **sizes | dict(ARCHITECTURES.get(architecture, _SIZES)) | options)
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, attn_implementation=attention)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0)
    return model.eval()


def tokenizer(chat: bool = False) -> PreTrainedTokenizerFast:
    """Return a byte-pair tokenizer with the tokens that chat templates use."""
    pairs = Tokenizer(models.BPE())
    pairs.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    pairs.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[PAD, EOS, END_OF_TURN],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    pairs.train_from_iterator(["the sum of two numbers is", "sort these digits and answer"], trainer)
    made = PreTrainedTokenizerFast(tokenizer_object=pairs, pad_token=PAD, eos_token=EOS)
    made.add_special_tokens({"additional_special_tokens": [END_OF_TURN]})
    if chat:
        made.chat_template = CHAT
    return made


def save_model(folder: Path, architecture: str = "llama", *, chat: bool = False, **options: Any) -> Path:
    """Write a model and its tokenizer into a folder, and return it."""
    words = tokenizer(chat)
    language_model(architecture, vocab_size=len(words), **options).save_pretrained(folder)
    words.save_pretrained(folder)
    return folder
