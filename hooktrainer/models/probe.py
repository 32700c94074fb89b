"""A comparison of a policy with the language model that it wraps, made when the policy is built."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor
from transformers import PreTrainedModel

from hooktrainer.errors import ConfigError
from hooktrainer.models.huggingface import HuggingFacePolicy, vocabulary_and_width
from hooktrainer.models.policy import in_eval_mode

_LENGTHS: Final = (12, 7)
"""Tokens of the two texts that are compared, in one padded batch."""
_DECODED: Final = 3
"""Tokens of each text that are decoded one by one."""
_TOLERANCE: Final = 1e-3
"""Largest difference of logits, relative to the largest logit. Wrong masks or positions differ by more than 0.1."""


@torch.no_grad()
def check_policy(policy: HuggingFacePolicy) -> None:
    """Raise `ConfigError` unless padding, cache and head give the logits of the plain language model."""
    lm = policy.lm
    device, vocabulary = lm.device, vocabulary_and_width(lm)[0]
    texts = [(torch.arange(length, device=device) * 7 + 3) % vocabulary for length in _LENGTHS]
    with in_eval_mode(policy), torch.autocast(device.type, enabled=False):
        try:
            expected = [lm(input_ids=text[None], use_cache=False).logits[0] for text in texts]
            found = {"padded texts": _padded(policy, texts), "decoded tokens": _decoded(policy, texts)}
        except Exception as error:
            raise ConfigError(f"{_name(lm)}: {error} ({type(error).__name__}). {_REMEDY}") from error
    for what, logits in found.items():
        _compare(lm, what, expected, logits)


_REMEDY: Final = (
    "hooktrainer decodes many texts of different lengths with one key-value cache, which this architecture does not "
    "support. Choose a causal language model with attention layers only"
)


def _padded(policy: HuggingFacePolicy, texts: list[Tensor]) -> list[Tensor]:
    longest = max(map(len, texts))
    left_pad = torch.tensor([longest - len(text) for text in texts], device=texts[0].device)
    tokens = torch.stack([torch.cat((text.new_zeros(longest - len(text)), text)) for text in texts])
    logits = policy.project(policy.hidden(tokens, left_pad))
    return [row[-len(text) :] for row, text in zip(logits, texts, strict=True)]


def _decoded(policy: HuggingFacePolicy, texts: list[Tensor]) -> list[Tensor]:
    """Return the logits after the last `_DECODED` + 1 tokens of each text, from prompts that are admitted in turn."""
    cache = policy.new_cache(len(texts), max(map(len, texts)))
    logits = []
    for text in texts:
        own = policy.new_cache(1, len(text))
        logits.append(policy.prefill(text[None, :-_DECODED], [len(text) - _DECODED], own))
        cache.append(own, [0])
    last = torch.stack([text[-_DECODED:] for text in texts])
    decoded = [policy.decode(tokens, cache) for tokens in last.unbind(dim=1)]
    return list(torch.stack([torch.cat(logits), *decoded], dim=1))


def _compare(lm: PreTrainedModel, what: str, expected: list[Tensor], found: list[Tensor]) -> None:
    for right, given in zip(expected, found, strict=True):
        wanted = right[-len(given) :].float()
        difference = float((given.float() - wanted).abs().max() / wanted.abs().max())
        if not difference <= _TOLERANCE:
            text = f"the logits of {what} differ from those of the plain model by {difference:.2g} of the largest logit"
            raise ConfigError(f"{_name(lm)}: {text}. {_REMEDY}")


def _name(lm: PreTrainedModel) -> str:
    return f"{type(lm).__name__} cannot be trained"
