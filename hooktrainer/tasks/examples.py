"""Examples that are made when they are used, so that skipped ones cost nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import overload

from hooktrainer.ports import Example


class LazyExamples(Sequence[Example]):
    """A sequence whose items are made by a function of their place."""

    def __init__(self, count: int, make: Callable[[int], Example]) -> None:
        self._count = count
        self._make = make

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, place: int) -> Example: ...
    @overload
    def __getitem__(self, place: slice) -> LazyExamples: ...

    def __getitem__(self, place: int | slice) -> Example | LazyExamples:
        """Return the example at a place, or the examples at several places."""
        chosen = range(self._count)[place]
        if isinstance(chosen, int):
            return self._make(chosen)
        return LazyExamples(len(chosen), lambda index: self._make(chosen[index]))
