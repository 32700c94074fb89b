"""Check a file of weights by its header, without torch."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from safetensors import SafetensorError, safe_open

from hooktrainer.errors import ConfigError

_POINTER: Final = b"version https://git-lfs"


def check_weights(file: Path) -> None:
    """Raise `ConfigError` if a file is missing, a pointer of Git LFS, or not complete. Weights are not read."""
    try:
        with file.open("rb") as opened:
            start = opened.read(len(_POINTER))
    except FileNotFoundError:
        raise ConfigError(f"{file} is missing") from None
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error}") from None
    if start == _POINTER:
        raise ConfigError(f"{file} is a pointer of Git LFS: run `git lfs pull` in the folder")
    remedy = "Copy or download it again"
    if file.suffix != ".safetensors":
        if not start:
            raise ConfigError(f"{file} is empty. {remedy}")
        return
    try:
        with safe_open(file, framework="numpy"):
            pass
    except (SafetensorError, OSError) as error:
        raise ConfigError(f"{file} is not complete or not of safetensors: {error}. {remedy}") from None
