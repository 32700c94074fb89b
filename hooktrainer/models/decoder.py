"""Decoder-only transformer: RMSNorm, causal attention with a key-value cache, learned or rotary positions.

Shapes: B rows, L tokens, H heads, D width of a head, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from hooktrainer.models.kv_cache import KVCache

Positions: TypeAlias = Literal["learned", "rotary"]
Rotation: TypeAlias = tuple[Tensor, Tensor]
"""Cosines and sines, each of shape (B or 1, L, 1, D)."""
Extend: TypeAlias = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Function from keys and values of new tokens to those of all tokens so far."""


class Layer(nn.Module):
    """Attention and a feed-forward network, each with a norm before it and a residual connection."""

    def __init__(self, width: int, heads: int, mlp_ratio: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.RMSNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.attention_out = nn.Linear(width, width, bias=False)
        self.mlp_norm = nn.RMSNorm(width)
        self.mlp_in = nn.Linear(width, mlp_ratio * width, bias=False)
        self.mlp_out = nn.Linear(mlp_ratio * width, width, bias=False)

    def forward(self, stream: Tensor, rotation: Rotation | None, mask: Tensor | None, memory: Extend | None) -> Tensor:
        """Apply the layer to (B, L, width). Without a mask, attention is causal, or full for a single token."""
        rows, length, width = stream.shape
        qkv = self.qkv(self.attention_norm(stream)).view(rows, length, 3, self.heads, -1)
        queries, keys, values = qkv.unbind(2)
        if rotation is not None:
            queries, keys = rotate(queries, *rotation), rotate(keys, *rotation)
        if memory is not None:
            keys, values = memory(keys, values)
        queries, keys, values = (part.transpose(1, 2) for part in (queries, keys, values))
        causal = mask is None and length > 1
        attended = functional.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, is_causal=causal)
        stream = stream + self.attention_out(attended.transpose(1, 2).reshape(rows, length, width))
        hidden = functional.relu(self.mlp_in(self.mlp_norm(stream))).square()
        return stream + self.mlp_out(hidden)  # type: ignore[no-any-return]


class Decoder(nn.Module):
    """The built-in policy, for at most `max_length` tokens; see `models.policy.Policy`."""

    def __init__(
        self,
        *,
        vocab_size: int,
        max_length: int,
        layers: int,
        width: int,
        heads: int,
        mlp_ratio: int,
        positions: Positions,
        tied: bool,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, width)
        self.positions = nn.Embedding(max_length, width) if positions == "learned" else None
        self.layers = nn.ModuleList(Layer(width, heads, mlp_ratio) for _ in range(layers))
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, vocab_size, bias=False)
        if tied:
            self.head.weight = self.embedding.weight
        if positions == "rotary":
            self.register_buffer("rotary", rotary_table(max_length, width // heads), persistent=False)
        self.rotary: Tensor
        self.width = width
        self.max_length = max_length
        self._cache_shape = (layers, 2, heads, width // heads)

    @torch.no_grad()
    def initialize(self, generator: torch.Generator) -> None:
        """Draw all weights: linear layers and the residual stream preserve the variance, initial logits are small."""
        for module in self.modules():
            if isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, generator=generator)
            elif isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=module.in_features**-0.5, generator=generator)
        for layer in self.layers:
            assert isinstance(layer, Layer)
            for out in (layer.attention_out, layer.mlp_out):
                out.weight.div_(math.sqrt(2 * len(self.layers)))
        nn.init.normal_(self.head.weight, std=0.02, generator=generator)

    def new_cache(self, rows: int, length: int) -> KVCache:
        """Return an empty cache for at most `rows` sequences of at most `length` tokens, prompt included."""
        layers, pair, heads, head_width = self._cache_shape
        # Masked entries must not be NaN, since zero times NaN is NaN.
        return KVCache(self.embedding.weight.new_zeros(layers, pair, rows, length, heads, head_width))

    def forward(self, tokens: Tensor, left_pad: Tensor | None = None, *, logits_to_keep: int | None = None) -> Tensor:
        """Return logits of the next token, shape (B, L, V); see `models.policy.Policy`."""
        return self.project(self.hidden(tokens, left_pad, states_to_keep=logits_to_keep))

    def hidden(self, tokens: Tensor, left_pad: Tensor | None = None, *, states_to_keep: int | None = None) -> Tensor:
        """Return the state after each token, shape (B, L, width); see `models.policy.Trunk`."""
        positions, mask = self._positions_and_mask(tokens.shape[1], left_pad)
        stream = self._read(tokens, positions, mask)
        return self.norm(stream if states_to_keep is None else stream[:, stream.shape[1] - states_to_keep :])  # type: ignore[no-any-return]

    def project(self, states: Tensor) -> Tensor:
        """Return logits of the next token for these states, shape (..., width) -> (..., V)."""
        return self.head(states)  # type: ignore[no-any-return]

    def prefill(self, tokens: Tensor, lengths: Sequence[int], cache: KVCache) -> Tensor:
        """Process texts into an empty cache; return logits of the next token of each, shape (B, V)."""
        # Padding on the right comes after all real tokens, and attention is causal.
        positions, _ = self._positions_and_mask(tokens.shape[1], None)
        stream = self._read(tokens, positions, None, cache)
        cache.lengths = list(lengths)
        last = torch.tensor(lengths, device=stream.device) - 1
        return self.project(self.norm(stream[torch.arange(len(tokens), device=stream.device), last]))

    def decode(self, tokens: Tensor, cache: KVCache) -> Tensor:
        """Process one more token for every row of a cache; return logits of the next token, shape (B, V)."""
        self._check_length(max(cache.lengths) + 1)
        positions, mask = cache.next_positions()
        stream = self._read(tokens[:, None], positions, mask, cache)
        cache.lengths = [length + 1 for length in cache.lengths]
        return self.project(self.norm(stream[:, 0]))

    def _read(self, tokens: Tensor, positions: Tensor, mask: Tensor | None, cache: KVCache | None = None) -> Tensor:
        stream = self.embedding(tokens)
        rotation = None
        if self.positions is not None:
            stream = stream + self.positions(positions)
        else:
            cosines, sines = self.rotary[:, positions, None].unbind()
            rotation = (cosines, sines)
        for index, layer in enumerate(self.layers):
            stream = layer(stream, rotation, mask, None if cache is None else partial(cache.extend, index))
        return stream  # type: ignore[no-any-return]

    def _positions_and_mask(self, length: int, left_pad: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return positions of the tokens, (B or 1, L), and the keys they attend to, (B, 1, L, L)."""
        self._check_length(length)
        keys = torch.arange(length, device=self.embedding.weight.device)
        if left_pad is None:
            return keys[None], None
        seen = (keys <= keys[:, None]) & (keys >= left_pad[:, None, None])
        # A padding token attends to itself, since a softmax over no key is NaN.
        mask = (seen | (keys == keys[:, None]))[:, None]
        return (keys - left_pad[:, None]).clamp(min=0), mask

    def _check_length(self, length: int) -> None:
        if length > self.max_length:
            raise ValueError(f"{length} tokens exceed the {self.max_length} tokens that the model was built for")


def rotary_table(length: int, width: int, base: float = 10_000.0) -> Tensor:
    """Return cosines and sines of RoPE (2104.09864), shape (2, length, width); both halves use the same angles."""
    frequencies = base ** (-torch.arange(0, width, 2, dtype=torch.float32) / width)
    angles = torch.outer(torch.arange(length, dtype=torch.float32), frequencies).repeat(1, 2)
    return torch.stack((angles.cos(), angles.sin()))


def rotate(vectors: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Rotate each pair (i, i + D/2) of the last dimension."""
    first, second = vectors.chunk(2, dim=-1)
    return vectors * cosines + torch.cat((-second, first), dim=-1) * sines
