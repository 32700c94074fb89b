"""Spans of time that the loop, handlers and workers spend, kept until they are taken."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import perf_counter
from types import MappingProxyType
from typing import Final, TypeAlias

import attrs

LOOP: Final = "loop"
"""The track of the thread that trains."""
MAX_SPANS: Final = 100_000
"""Spans that are kept; beyond that, the oldest are dropped."""
Labels: TypeAlias = Mapping[str, int | str]


@attrs.frozen
class Span:
    """A stretch of time on a track. Two spans of one track nest, or do not overlap."""

    track: str
    """Name of the thread or the worker."""
    name: str
    start: float
    """Seconds of the machine's monotonic clock."""
    end: float
    labels: Labels = MappingProxyType({})
    """Numbers and names to show, such as the step and the version."""


class KeptTimeline:
    """Implementation of `hooktrainer.ports.Timeline`. Thread-safe."""

    def __init__(self, *, kept: bool = False, limit: int = MAX_SPANS) -> None:
        self.kept = kept
        """Whether spans are kept."""
        self.lost = 0
        """Spans that were dropped because nobody took them."""
        self._spans: deque[Span] = deque(maxlen=limit)

    def keep(self) -> None:
        """Keep the spans that are added after this call."""
        self.kept = True

    def add(self, track: str, name: str, start: float, end: float, labels: Labels = MappingProxyType({})) -> None:
        """Add a span that has ended, unless none are kept."""
        if self.kept:
            self.extend([Span(track, name, start, end, dict(labels))])

    def extend(self, spans: Sequence[Span]) -> None:
        """Add spans that were taken from another timeline, unless none are kept."""
        if self.kept:
            self.lost += max(0, len(self._spans) + len(spans) - (self._spans.maxlen or 0))
            self._spans.extend(spans)

    @contextmanager
    def span(self, name: str, **labels: int | str) -> Iterator[None]:
        """Add the time of a `with` block on the track of the loop, also if it raises."""
        started = perf_counter()
        try:
            yield
        finally:
            self.add(LOOP, name, started, perf_counter(), labels)

    def take(self) -> Sequence[Span]:
        """Return the spans since the last call, in the order in which they were added."""
        return [self._spans.popleft() for _ in range(len(self._spans))]
