"""The folder of a saved decoder: `model.safetensors` has the weights, `config.json` all that rebuilds the model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from hooktrainer.errors import ConfigError, Fault
from hooktrainer.models.decoder import Decoder
from hooktrainer.models.decoder_config import CONFIG, FORMAT, VERSION, WEIGHTS
from hooktrainer.models.policy import full_state


def write(folder: Path, module: nn.Module, *, options: Mapping[str, Any], alphabet: str) -> None:
    """Write a decoder into a folder. Raises `TypeError` for another class of module."""
    if type(module) is not Decoder:
        raise TypeError(f"{type(module).__name__} is not the built-in decoder, so its class needs its own `save`")
    config = {"format": FORMAT, "version": VERSION, "alphabet": alphabet, "max_length": module.max_length}
    text = json.dumps({**config, "options": dict(options)}, indent=2, ensure_ascii=False)
    (folder / CONFIG).write_text(f"{text}\n", encoding="utf-8")
    save_file({name: tensor.cpu().contiguous() for name, tensor in _untied(module).items()}, folder / WEIGHTS)


def load_weights(module: Decoder, folder: Path) -> None:
    """Copy the weights of a folder into a decoder. Raises `ConfigError` if they do not fit."""
    path = folder / WEIGHTS
    try:
        saved = load_file(path)
    except (OSError, SafetensorError) as error:
        raise _fault(f"{path} cannot be read: {error}") from None
    tensors = _untied(module)
    expected, found = ({name: tuple(tensor.shape) for name, tensor in weights.items()} for weights in (tensors, saved))
    if differs := sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name)):
        shapes = f"{found.get(differs[0], 'missing')}, expected {expected.get(differs[0], 'none')}"
        raise _fault(f"{path} does not fit its {CONFIG}: '{differs[0]}' is {shapes}")
    for name, tensor in tensors.items():
        tensor.copy_(saved[name])


def _untied(module: nn.Module) -> Mapping[str, Tensor]:
    """Return the weights by name, each once."""
    named: dict[object, tuple[str, Tensor]] = {}
    for name, tensor in full_state(module).items():
        named.setdefault((tensor.data_ptr(), tensor.shape), (name, tensor))
    return dict(named.values())


def _fault(text: str) -> ConfigError:
    return ConfigError([Fault("model.path", text)])
