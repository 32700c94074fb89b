"""Check that a model reads and predicts the tokens of its tokenizer."""

from __future__ import annotations

import bisect

import torch
from torch import nn

from hooktrainer.errors import ConfigError, Fault
from hooktrainer.models.policy import in_eval_mode


@torch.no_grad()
def check_vocabulary(model: nn.Module, vocab_size: int) -> None:
    """Raise `ConfigError` unless the model reads every token and returns one logit for each.

    A model with `padded_vocab_size` has that many tokens. The model processes the last token of the vocabulary.
    """
    with in_eval_mode(model):
        predicted = _predicted(model, vocab_size - 1)
        if predicted is None:
            unread = bisect.bisect_left(range(vocab_size), True, key=lambda token: _predicted(model, token) is None)
            raise _fault(f"reads {unread}", vocab_size)
    if predicted != getattr(model, "padded_vocab_size", vocab_size) or predicted < vocab_size:
        raise _fault(f"returns logits of {predicted}", vocab_size)


def _predicted(model: nn.Module, token: int) -> int | None:
    """Return the number of tokens that the model predicts after a token; None if it cannot read the token."""
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    try:
        return int(model(torch.tensor([[token]], device=device)).shape[-1])
    except IndexError:
        return None


def _fault(found: str, vocab_size: int) -> ConfigError:
    text = f"the model {found} tokens, and the tokenizer of the task has {vocab_size}"
    return ConfigError([Fault("model", f"{text}. Build the model with the vocab_size that its `build` receives")])
