"""Reward shaping: the penalty of DAPO (2503.14476, §3) for overlong answers."""

from __future__ import annotations

from torch import Tensor

from hooktrainer.errors import ConfigError


def overlong_penalty(lengths: Tensor, *, max_length: int, buffer: int, factor: float = 1.0) -> Tensor:
    """Return factor · clip((max_length - buffer - length) / buffer, -1, 0), to be added to the score. (B,) -> (B,).

    Lengths are in tokens; for integer lengths the penalty has the type float64. verl has no lower bound of -factor
    beyond `max_length`. Raises `ConfigError` unless 1 <= buffer <= max_length and factor >= 0. Source: DAPO eq. 13.
    """
    if not 1 <= buffer <= max_length:
        raise ConfigError(f"expected 1 <= buffer <= max_length, found buffer {buffer} and max_length {max_length}")
    if factor < 0:
        raise ConfigError(f"expected a factor of at least 0, found {factor}")
    exact = lengths if lengths.is_floating_point() else lengths.double()
    over = (exact - (max_length - buffer)) / buffer
    return -factor * over.clamp(0.0, 1.0)
