"""A decoder-only transformer: RMSNorm, causal attention with a key-value cache, learned or rotary positions.

Shapes: B rows, L tokens, H heads, D width of a head, V vocabulary.
"""

from __future__ import annotations

import math
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

Positions: TypeAlias = Literal["learned", "rotary"]
Rotation: TypeAlias = tuple[Tensor, Tensor]
"""Cosines and sines, each of shape (B or 1, L, 1, 1, D)."""


class KVCache:
    """Keys and values of all layers, in memory set aside for `length` tokens."""

    def __init__(self, memory: Tensor, used: int = 0) -> None:
        self._memory = memory
        """Shape (layers, 2, B, H, length, D)."""
        self.used = used
        """Tokens that every layer has seen."""

    def repeat(self, times: int) -> KVCache:
        """Every row `times` times, in place of itself."""
        return KVCache(self._memory.repeat_interleave(times, dim=2), self.used)

    def extend(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write (B, H, L, D) behind the tokens before; returns all keys and values so far."""
        end = self.used + keys.shape[-2]
        memory = self._memory[layer]
        memory[0, :, :, self.used : end] = keys
        memory[1, :, :, self.used : end] = values
        return memory[0, :, :, :end], memory[1, :, :, :end]


class Layer(nn.Module):
    """Attention and a feed-forward network, each behind a norm and added to the stream."""

    def __init__(self, width: int, heads: int, mlp_ratio: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.RMSNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.attention_out = nn.Linear(width, width, bias=False)
        self.mlp_norm = nn.RMSNorm(width)
        self.mlp_in = nn.Linear(width, mlp_ratio * width, bias=False)
        self.mlp_out = nn.Linear(mlp_ratio * width, width, bias=False)

    def forward(
        self, stream: Tensor, rotation: Rotation | None, mask: Tensor | None, cache: KVCache | None, index: int
    ) -> Tensor:
        """One layer over (B, L, width); `mask` None means causal over these tokens alone."""
        rows, length, width = stream.shape
        qkv = self.qkv(self.attention_norm(stream)).view(rows, length, 3, self.heads, -1)
        turned = qkv[:, :, :2] if rotation is None else rotate(qkv[:, :, :2], *rotation)
        queries, keys = turned.transpose(1, 3).unbind(2)
        values = qkv[:, :, 2].transpose(1, 2)
        if cache is not None:
            keys, values = cache.extend(index, keys, values)
        causal = mask is None and length > 1
        attended = functional.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, is_causal=causal)
        stream = stream + self.attention_out(attended.transpose(1, 2).reshape(rows, length, width))
        hidden = functional.relu(self.mlp_in(self.mlp_norm(stream))).square()
        return stream + self.mlp_out(hidden)  # type: ignore[no-any-return]


class Transformer(nn.Module):
    """The policy of `models.policy`, for up to `max_length` tokens."""

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
        self._max_length = max_length
        self._cache_shape = (layers, 2, heads, width // heads)

    @torch.no_grad()
    def initialize(self, generator: torch.Generator) -> None:
        """Draw all weights: variance kept by every map, the stream's kept over depth, small first logits."""
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
        """An empty cache for `rows` answers of at most `length` tokens, prompt and padding included."""
        layers, pair, heads, head_width = self._cache_shape
        return KVCache(self.embedding.weight.new_empty(layers, pair, rows, heads, length, head_width))

    def forward(
        self,
        tokens: Tensor,
        left_pad: Tensor | None = None,
        *,
        cache: KVCache | None = None,
        logits_to_keep: int | None = None,
    ) -> Tensor:
        """Logits of the next token, shape (B, L, V); see `models.policy.Policy`."""
        start = 0 if cache is None else cache.used
        places, mask = self._places(start, start + tokens.shape[1], left_pad)
        stream = self.embedding(tokens)
        rotation = None
        if self.positions is not None:
            stream = stream + self.positions(places)
        else:
            cosines, sines = self.rotary[:, places, None, None].unbind()
            rotation = (cosines, sines)
        for index, layer in enumerate(self.layers):
            stream = layer(stream, rotation, mask, cache, index)
        if cache is not None:
            cache.used += tokens.shape[1]
        if logits_to_keep is not None:
            stream = stream[:, stream.shape[1] - logits_to_keep :]
        return self.head(self.norm(stream))  # type: ignore[no-any-return]

    def _places(self, start: int, end: int, left_pad: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Places of the tokens start..end in their rows, (B or 1, L), and which keys they see, (B or 1, 1, L, end)."""
        if end > self._max_length:
            raise ValueError(f"{end} tokens do not fit into a model built for {self._max_length}")
        keys = torch.arange(end, device=self.embedding.weight.device)
        queries = keys[start:]
        if left_pad is None:
            mask = None if start == 0 or len(queries) == 1 else (keys <= queries[:, None])[None, None]
            return queries[None], mask
        seen = (keys <= queries[:, None]) & (keys >= left_pad[:, None, None])
        # A padding token sees itself: a softmax over nothing would be NaN.
        mask = (seen | (keys == queries[:, None]))[:, None]
        return (queries - left_pad[:, None]).clamp(min=0), mask


def rotary_table(length: int, width: int, base: float = 10_000.0) -> Tensor:
    """Cosines and sines of RoPE (2104.09864), shape (2, length, width); both halves turn by the same angles."""
    frequencies = base ** (-torch.arange(0, width, 2, dtype=torch.float32) / width)
    angles = torch.outer(torch.arange(length, dtype=torch.float32), frequencies).repeat(1, 2)
    return torch.stack((angles.cos(), angles.sin()))


def rotate(vectors: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Turn each pair (i, i + D/2) of the last dimension."""
    first, second = vectors.chunk(2, dim=-1)
    return vectors * cosines + torch.cat((-second, first), dim=-1) * sines
