"""Ports of timings: what each thread and worker did when."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from hooktrainer._util.timeline import Labels, Span

__all__ = ["Labels", "Span", "SupportsTimeline", "Timeline"]


@runtime_checkable
class Timeline(Protocol):
    """Spans of the loop, of signals and handlers, of workers and of weight syncs. Thread-safe.

    Nothing is kept until a plugin asks for it. A span is added when it ends.
    """

    @property
    def lost(self) -> int:
        """Return how many spans were dropped because nobody took them."""
        ...

    def keep(self) -> None:
        """Keep the spans that are added after this call, which belongs in `fit_start`."""
        ...

    def add(self, track: str, name: str, start: float, end: float, labels: Labels = ...) -> None:
        """Add a span; times are those of `time.perf_counter`. Spans of one track nest, or do not overlap."""
        ...

    def extend(self, spans: Sequence[Span]) -> None:
        """Add spans."""
        ...

    def take(self) -> Sequence[Span]:
        """Return the spans since the last call, in the order in which they were added."""
        ...


@runtime_checkable
class SupportsTimeline(Protocol):
    """An engine that shows what its workers do."""

    def use_timeline(self, timeline: Timeline) -> None:
        """Add the spans of workers to this timeline. The loop calls it before `start`."""
        ...
