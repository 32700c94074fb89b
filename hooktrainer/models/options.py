"""Options of the built-in model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import attrs
from attrs.validators import and_, ge, in_, instance_of

from hooktrainer.errors import ConfigError
from hooktrainer.models.character_tokenizer import CharTokenizer
from hooktrainer.models.device import device_option, to_device
from hooktrainer.models.size import ModelSize
from hooktrainer.ports import CharacterTask, Task

if TYPE_CHECKING:
    from torch import nn


_COUNT: Final = and_(instance_of(int), ge(1))
_BYTES: Final = 4  # of a 32-bit value


class CharacterModel:
    """Base of models that read characters: their tokenizer is made from the alphabet of a task."""

    def tokenizer(self, task: Task) -> CharTokenizer:
        """Return a tokenizer over the alphabet of a task. Raises `ConfigError` if the task has none."""
        if not isinstance(task, CharacterTask):
            raise ConfigError(
                f"the model reads characters, and the task {type(task).__name__} has no `alphabet`. Use a model with "
                "its own tokenizer, such as `model: {use: huggingface, path: ...}`"
            )
        return CharTokenizer(task.alphabet)


@attrs.frozen(kw_only=True)
class DecoderOptions(CharacterModel):
    """A decoder-only transformer with RMSNorm, trained from scratch."""

    layers: int = attrs.field(default=3, validator=_COUNT)
    """Number of layers."""
    width: int = attrs.field(default=96, validator=_COUNT)
    """Width of the residual stream: a multiple of `heads`, or of twice `heads` with rotary positions."""
    heads: int = attrs.field(default=4, validator=_COUNT)
    """Number of attention heads."""
    mlp_ratio: int = attrs.field(default=4, validator=_COUNT)
    """Width of the feed-forward network, divided by `width`."""
    positions: Literal["learned", "rotary"] = attrs.field(default="learned", validator=in_(("learned", "rotary")))
    """`learned`: added embeddings. `rotary`: rotations of queries and keys. `learned` trains much faster where answers
    depend on absolute positions."""
    tied: bool = attrs.field(default=False, validator=instance_of(bool))
    """Whether embedding and head share their weights."""
    device: str = device_option()
    """Where the model is trained: `auto` (the first GPU, else the CPU), `cpu`, `cuda`, `cuda:1`."""

    def __attrs_post_init__(self) -> None:
        unit = self.heads if self.positions == "learned" else 2 * self.heads  # a rotation acts on pairs
        if self.width % unit:
            raise ValueError(
                f"'width' is {self.width}, but {self.heads} heads with {self.positions} positions "
                f"require a multiple of {unit}"
            )

    def size(self, *, vocab_size: int, max_length: int) -> ModelSize:
        """Return the size of the model that `build` returns for these arguments."""
        layer = (4 + 2 * self.mlp_ratio) * self.width**2 + 2 * self.width
        tables = vocab_size * (1 if self.tied else 2) + (max_length if self.positions == "learned" else 0)
        return ModelSize(
            parameters=self.layers * layer + tables * self.width + self.width,
            cache_bytes_per_token=2 * _BYTES * self.layers * self.width,
            activation_bytes_per_token=(8 + 2 * self.mlp_ratio) * _BYTES * self.layers * self.width,
            activation_bytes_per_pair=1,  # a mask
        )

    def build(self, *, vocab_size: int, max_length: int, seed: int) -> nn.Module:
        """Build a model for at most `max_length` tokens. The seed determines the weights."""
        import torch

        from hooktrainer.models.decoder import Decoder

        with torch.random.fork_rng(devices=()):  # constructors of layers draw from the global generator
            model = Decoder(vocab_size=vocab_size, max_length=max_length, **self.architecture())
        model.initialize(torch.Generator().manual_seed(seed))
        return to_device(model, self.device, "model.device")

    def architecture(self) -> dict[str, Any]:
        """Return the options that determine the shapes of the weights."""
        return {name: value for name, value in attrs.asdict(self).items() if name != "device"}

    def save(self, module: nn.Module, tokenizer: CharTokenizer, folder: Path) -> None:
        """Write weights, options and alphabet into a folder; `saved_decoder` loads it."""
        from hooktrainer.models.decoder_folder import write

        write(folder, module, options=self.architecture(), alphabet=tokenizer.alphabet)
