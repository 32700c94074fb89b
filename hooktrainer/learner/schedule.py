"""Learning rate over time, as a factor; time is counted in the unit that the configuration names."""

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
    """Rises linearly to 1, stays there, and falls to the floor."""

    warmup: int = 0
    """Units until it is 1; with 0 the first one is."""
    decay_start: int | None = None
    """Units after which it falls; None for never."""
    decay: int = 1
    """Units over which it falls."""
    shape: Shape = "linear"
    floor: float = 0.0
    """What it falls to."""

    def factor(self, unit: int) -> float:
        """The factor in a unit, counted from 1.

        A linear decay from the start to 0 over N is 1 - (unit - 1) / N: 1 in the first unit, 1 / N in the last.
        """
        risen = min(1.0, unit / max(self.warmup, 1))
        since = 0 if self.decay_start is None else max(0, unit - 1 - self.decay_start)
        fallen = min(1.0, since / self.decay)
        if self.shape == "cosine":
            fallen = (1.0 - math.cos(math.pi * fallen)) / 2.0
        return risen * (1.0 - fallen * (1.0 - self.floor))
