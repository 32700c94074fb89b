"""What DAPO does to scores and answers before anything is made of them. Source of all: DAPO (2503.14476) §3."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from hooktrainer.errors import ConfigError


def overlong_penalty(lengths: Tensor, *, max_length: int, buffer: int, factor: float = 1.0) -> Tensor:
    """What is added to the score: factor · clip((max_length - buffer - length) / buffer, -1, 0). Shapes (B,) -> (B,).

    Lengths are in tokens. verl leaves out the floor of -factor beyond `max_length`. Raises `ConfigError` unless
    1 <= buffer <= max_length and factor >= 0. Source: DAPO eq. 13.
    """
    if not 1 <= buffer <= max_length:
        raise ConfigError(f"expected 1 <= buffer <= max_length, found buffer {buffer} and max_length {max_length}")
    if factor < 0:
        raise ConfigError(f"expected a factor of at least 0, found {factor}")
    over = (lengths - (max_length - buffer)) / buffer
    return -factor * over.clamp(0.0, 1.0)


def overlong_filtered(mask: Tensor, truncated: Tensor) -> Tensor:
    """The mask without answers that were cut off at the longest response. Shapes (B, T), (B,) bool -> (B, T).

    It comes before anything is counted: such an answer is in no denominator.
    """
    return mask & ~truncated[:, None]


def has_signal(scores: Sequence[float]) -> bool:
    """Whether the answers to one prompt differ in their scores, so that a group-relative advantage is not 0.

    Judged on the task's own scores: after overlong shaping, groups of all right answers would pass.
    """
    return len(scores) > 0 and max(scores) != min(scores)
