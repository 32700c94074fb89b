"""The built-in model: a small decoder-only transformer, trained from scratch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import attrs
from attrs.validators import and_, ge, in_, instance_of

if TYPE_CHECKING:
    from torch import nn


_COUNT = and_(instance_of(int), ge(1))


@attrs.frozen(kw_only=True)
class DecoderOptions:
    """A decoder-only transformer with RMSNorm, trained from scratch."""

    layers: int = attrs.field(default=3, validator=_COUNT)
    """Layers."""
    width: int = attrs.field(default=96, validator=_COUNT)
    """Width of the residual stream; a multiple of `heads`, of twice that with rotary positions."""
    heads: int = attrs.field(default=4, validator=_COUNT)
    """Attention heads."""
    mlp_ratio: int = attrs.field(default=4, validator=_COUNT)
    """Width of the feed-forward network over `width`."""
    positions: Literal["learned", "rotary"] = attrs.field(default="learned", validator=in_(("learned", "rotary")))
    """How places are told apart: embeddings that are added, or rotations of queries and keys. Where an answer depends
    on the place itself, and not on distances, `learned` is much the faster to train."""
    tied: bool = attrs.field(default=False, validator=instance_of(bool))
    """Whether embedding and head share their weights."""

    def __attrs_post_init__(self) -> None:
        unit = self.heads if self.positions == "learned" else 2 * self.heads  # rotations turn pairs
        if self.width % unit:
            raise ValueError(
                f"'width' is {self.width}; {self.heads} heads and {self.positions} positions need a multiple of {unit}"
            )

    def build(self, *, vocab_size: int, max_length: int, seed: int) -> nn.Module:
        """A new model for up to `max_length` tokens; one seed always gives the same weights."""
        import torch

        from hooktrainer.models.decoder import Decoder

        with torch.random.fork_rng(devices=()):  # the layers' own initialization draws from the global generator
            model = Decoder(vocab_size=vocab_size, max_length=max_length, **attrs.asdict(self))
        model.initialize(torch.Generator().manual_seed(seed))
        return model
