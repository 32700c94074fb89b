"""How the weights that an engine stages reach the sets of its workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from hooktrainer.ports import Weights


class WeightStaging(Protocol):
    """A way to copy weights to workers. The engine stages them into a copy of its own first."""

    def open(self) -> None:
        """Prepare for workers, which start afterwards."""
        ...

    def add(self, index: int, weights: Weights) -> object | None:
        """Return what a worker needs to copy these weights into a set; None if it maps the memory of the engine."""
        ...

    def discard(self, index: int) -> None:
        """Release the buckets of this set, which is staged anew."""
        ...

    def buckets(self) -> Sequence[tuple[int, object]]:
        """Return set and bucket of everything that a new worker has to copy, oldest first."""
        ...

    def close(self) -> None:
        """Release everything; the workers have ended."""
        ...
