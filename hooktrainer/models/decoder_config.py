"""The `config.json` of a saved decoder, read without torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import attrs

from hooktrainer.errors import ConfigError, Fault

FORMAT: Final = "hooktrainer.decoder"
VERSION: Final = 1
CONFIG: Final = "config.json"
WEIGHTS: Final = "model.safetensors"


@attrs.frozen(kw_only=True)
class DecoderConfig:
    """The content of `config.json`."""

    alphabet: str
    """Characters of the tokens from 2; token 0 is padding, token 1 ends an answer."""
    max_length: int
    """Tokens of a prompt and its answer that the decoder was built for."""
    options: Mapping[str, Any]
    """Options of `model: decoder`."""


def read_config(folder: Path) -> DecoderConfig:
    """Return the content of `config.json`. Raises `ConfigError` unless it is one of a saved decoder."""
    try:
        found = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        if found["format"] != FORMAT:
            raise ValueError(f"its format is {found['format']!r}, expected {FORMAT!r}")
        if found["version"] != VERSION:
            raise ValueError(f"its version is {found['version']}, and this hooktrainer reads version {VERSION}")
        names = {field.name for field in attrs.fields(DecoderConfig)}
        return DecoderConfig(**{name: found[name] for name in names})
    except (OSError, KeyError, TypeError, ValueError) as error:
        text = f"has no '{error.args[0]}'" if isinstance(error, KeyError) else str(error)
        raise ConfigError([Fault("model.path", f"{folder / CONFIG} is not that of a saved decoder: {text}")]) from None
