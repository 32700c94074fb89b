"""The learning-rate schedule, as a factor. Time is counted in updates or in steps, as configured."""

from __future__ import annotations

import math
from typing import Final, Literal, TypeAlias

import attrs

Unit: TypeAlias = Literal["update", "step"]
UNITS: Final[tuple[Unit, ...]] = ("update", "step")
Shape: TypeAlias = Literal["linear", "cosine"]
SHAPES: Final[tuple[Shape, ...]] = ("linear", "cosine")


@attrs.frozen(kw_only=True)
class Schedule:
    """A factor that rises linearly to 1, stays constant, and decays to a floor."""

    warmup: int = 0
    """Units until the factor is 1. With 0 it is 1 in the first unit."""
    decay_start: int | None = None
    """Units after which it decays; None for no decay."""
    decay: int = 1
    """Units over which it decays."""
    shape: Shape = "linear"
    floor: float = 0.0
    """The factor after the decay."""

    def factor(self, unit: int) -> float:
        """Return the factor in a unit, counted from 1.

        A linear decay from the start to 0 over N is 1 - (unit - 1) / N: 1 in the first unit, 1 / N in the last.
        """
        risen = min(1.0, unit / max(self.warmup, 1))
        since = 0 if self.decay_start is None else max(0, unit - 1 - self.decay_start)
        fallen = min(1.0, since / self.decay)
        if self.shape == "cosine":
            fallen = (1.0 - math.cos(math.pi * fallen)) / 2.0
        return risen * (1.0 - fallen * (1.0 - self.floor))
