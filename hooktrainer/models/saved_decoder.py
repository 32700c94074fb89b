"""Options of a decoder that a run saved."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from hooktrainer._util.registry import FILE
from hooktrainer.errors import ConfigError, Fault
from hooktrainer.models.character_tokenizer import CharTokenizer
from hooktrainer.models.decoder_config import WEIGHTS, DecoderConfig, read_config
from hooktrainer.models.device import device_option, to_device
from hooktrainer.models.options import CharacterModel, DecoderOptions
from hooktrainer.models.weight_files import check_weights
from hooktrainer.ports import CharacterTask, Task

if TYPE_CHECKING:
    from torch import nn


@attrs.frozen(kw_only=True)
class SavedDecoder(CharacterModel):
    """The built-in decoder with the weights, options and alphabet of a folder that a run saved."""

    path: Path = attrs.field(converter=Path, metadata={FILE: True})
    """The folder, such as `runs/quickstart/model`."""
    device: str = device_option()
    """Where the model is trained: `auto` (the first GPU, else the CPU), `cpu`, `cuda`, `cuda:1`."""

    @property
    def max_length(self) -> int:
        """Tokens of a prompt and its answer that the decoder was trained for."""
        return self._config.max_length

    def check_files(self) -> None:
        """Raise `ConfigError` unless the folder has the files of a saved decoder."""
        read_config(self.path)
        try:
            check_weights(self.path / WEIGHTS)
        except ConfigError as error:
            error.place("model.path")
            raise

    def tokenizer(self, task: Task) -> CharTokenizer:
        """Return the tokenizer of the folder. Raises `ConfigError` if the task has other characters."""
        alphabet = self._config.alphabet
        if isinstance(task, CharacterTask) and (other := sorted(set(task.alphabet) - set(alphabet))):
            text = f"the decoder in {self.path} has the alphabet {alphabet!r}, without {''.join(other)!r} of the task"
            raise ConfigError([Fault("model.path", f"{text}. Use a task or a model with the alphabet of the other")])
        return CharTokenizer(alphabet)

    def build(self, *, vocab_size: int, max_length: int, seed: int) -> nn.Module:  # noqa: ARG002 (weights are given)
        """Build the decoder with the saved weights. Raises `ConfigError` if it has fewer than `max_length` tokens."""
        import torch

        from hooktrainer.models.decoder import Decoder
        from hooktrainer.models.decoder_folder import load_weights

        config = self._config
        if max_length > config.max_length:
            found = (
                f"prompts and answers have up to {max_length} tokens, and the decoder in {self.path} was trained for"
            )
            text = f"{found} {config.max_length}. Lower max_prompt_length or max_response_length"
            raise ConfigError([Fault("rollout", text)])
        options = DecoderOptions(**config.options).architecture()
        with torch.random.fork_rng(devices=()), torch.no_grad():
            model = Decoder(vocab_size=vocab_size, max_length=config.max_length, **options)
            load_weights(model, self.path)
        return to_device(model, self.device, "model.device")

    def save(self, module: nn.Module, tokenizer: CharTokenizer, folder: Path) -> None:
        """Write weights, options and alphabet into a folder, as `decoder` does."""
        DecoderOptions(**self._config.options).save(module, tokenizer, folder)

    @property
    def _config(self) -> DecoderConfig:
        return read_config(self.path)
