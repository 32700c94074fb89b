"""A causal language model of transformers as a policy. Shapes: B rows, L tokens, V vocabulary."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPast

from hooktrainer.models.huggingface_cache import HuggingFaceCache


class HuggingFacePolicy(nn.Module):
    """A language model with the masks, the cache and the head of transformers; see `models.policy.Policy`.

    Texts are padded on the left, and position ids count real tokens.
    """

    def __init__(self, lm: PreTrainedModel, dtype: str = "float32") -> None:
        super().__init__()
        self.lm = lm
        self._dtype: torch.dtype = getattr(torch, dtype)
        self._recomputed: list[GradientCheckpointingLayer] = []
        self.padded_vocab_size, self.width = vocabulary_and_width(lm)
        # transformers 5.24 renamed the argument.
        parameters = inspect.signature(lm.base_model.forward).parameters
        self._cache_argument = "cache" if "cache" in parameters else "past_key_values"

    def forward(self, tokens: Tensor, left_pad: Tensor | None = None, *, logits_to_keep: int | None = None) -> Tensor:
        """Return logits of the next token, shape (B, L, V); see `models.policy.Policy`."""
        return self.project(self.hidden(tokens, left_pad, states_to_keep=logits_to_keep))

    def hidden(self, tokens: Tensor, left_pad: Tensor | None = None, *, states_to_keep: int | None = None) -> Tensor:
        """Return the state after each token, shape (B, L, width); see `models.policy.Trunk`."""
        states = self._states(tokens, left_pad, use_cache=False)
        return states if states_to_keep is None else states[:, states.shape[1] - states_to_keep :]

    def project(self, states: Tensor) -> Tensor:
        """Return logits of the next token for these states, shape (..., width) -> (..., V)."""
        flat = states.reshape(1, -1, self.width)
        with self._precision(states):
            logits: Tensor = _head_of(self.lm)(inputs_embeds=flat, use_cache=False).logits
        return logits.view(*states.shape[:-1], -1)

    def new_cache(self, rows: int, length: int) -> HuggingFaceCache:
        """Return an empty cache, which grows with its rows."""
        del rows, length
        return HuggingFaceCache()

    def prefill(self, tokens: Tensor, lengths: Sequence[int], cache: HuggingFaceCache) -> Tensor:
        """Process texts into an empty cache; return logits of the next token of each, shape (B, V)."""
        longest = max(lengths)
        left_pad = longest - torch.tensor(lengths, device=tokens.device)
        columns = torch.arange(longest, device=tokens.device) - left_pad[:, None]
        moved = tokens.gather(1, columns.clamp(min=0))  # padding moves from the right to the left
        states = self._states(moved, left_pad, use_cache=True, **{self._cache_argument: cache.layers})
        cache.lengths = list(lengths)
        return self.project(states[:, -1])

    def decode(self, tokens: Tensor, cache: HuggingFaceCache) -> Tensor:
        """Process one more token for every row of a cache; return logits of the next token, shape (B, V)."""
        lengths = torch.tensor(cache.lengths, device=tokens.device)
        longest = max(cache.lengths)
        mask = torch.arange(longest + 1, device=tokens.device) >= (longest - lengths)[:, None]
        with self._precision(tokens):
            output = self.lm.base_model(
                input_ids=tokens[:, None],
                attention_mask=mask.long(),
                position_ids=lengths[:, None],
                use_cache=True,
                **{self._cache_argument: cache.layers},
            )
        cache.lengths = [length + 1 for length in cache.lengths]
        return self.project(output.last_hidden_state[:, 0])

    def _states(self, tokens: Tensor, left_pad: Tensor | None, **options: Any) -> Tensor:
        inputs: Mapping[str, Tensor] = {}
        if left_pad is not None:
            columns = torch.arange(tokens.shape[1], device=tokens.device) - left_pad[:, None]
            inputs = {"attention_mask": (columns >= 0).long(), "position_ids": columns.clamp(min=0)}
        with self._precision(tokens), self._recomputed_layers():
            return self.lm.base_model(input_ids=tokens, **inputs, **options).last_hidden_state  # type: ignore[no-any-return]

    def recompute_layers(self) -> None:
        """Compute the layers again in the backward pass, which saves memory."""
        lm: Any = self.lm
        # transformers 5.24 renamed the method.
        enable = getattr(lm, "activation_checkpointing_enable", None) or lm.gradient_checkpointing_enable
        enable({"use_reentrant": False})
        self._recomputed = [part for part in lm.modules() if isinstance(part, GradientCheckpointingLayer)]

    @contextmanager
    def _recomputed_layers(self) -> Iterator[None]:
        """Let layers be recomputed in evaluation mode, too; transformers requires training mode of the layer itself.

        Dropout belongs to parts of a layer, which stay in evaluation mode.
        """
        layers = [layer for layer in self._recomputed if not layer.training] if torch.is_grad_enabled() else []
        try:
            for layer in layers:
                layer.training = True
            yield
        finally:
            for layer in layers:
                layer.training = False

    def _precision(self, like: Tensor) -> torch.autocast:
        """Return a context in which matrix products have the configured precision."""
        return torch.autocast(like.device.type, self._dtype, enabled=self._dtype != torch.float32)


def vocabulary_and_width(lm: PreTrainedModel) -> tuple[int, int]:
    """Return the number of tokens of the embeddings, and the size of a hidden state."""
    head: Any = lm.get_output_embeddings()  # type: ignore[no-untyped-call]
    vocabulary, width = head.weight.shape
    return vocabulary, width


class _GivenStates(nn.Module):
    """Replaces the layers of a language model: returns its input as the hidden states."""

    def forward(self, *_: object, inputs_embeds: Tensor, **__: object) -> _OnlyStates:
        return _OnlyStates(last_hidden_state=inputs_embeds)


class _OnlyStates(BaseModelOutputWithPast):
    """Hidden states; every other output, which depends on the architecture, is None."""

    def __getattr__(self, _name: str) -> None:
        return None


def _head_of(lm: PreTrainedModel) -> PreTrainedModel:
    """Return the language model without its layers, which maps hidden states to logits as its own code does."""
    head = copy.copy(lm)
    head._modules = {**lm._modules, lm.base_model_prefix: _GivenStates()}
    return head
