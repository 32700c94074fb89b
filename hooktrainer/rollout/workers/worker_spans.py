"""Spans of a worker, on its own track and in the time of the engine's process."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from hooktrainer.ports import Span
from hooktrainer.rollout.workers.messages import WORKER


@attrs.define
class WorkerSpans:
    """Converts the spans of one worker."""

    number: int
    """Number of the worker, which names its track."""
    shares_clock: bool = True
    """Whether it runs on this machine, so that its monotonic clock is the same."""
    _ahead: float | None = attrs.field(default=None, init=False)

    def converted(self, spans: Sequence[Span], sent: float, received: float) -> Sequence[Span]:
        """Return the spans of the generating thread; `sent` is the worker's time, and `received` that of the engine.

        Clocks are compared at the first message only, since spans would overlap if the difference changed. On another
        machine, spans are therefore too late by the time that this message took.
        """
        if self._ahead is None:
            self._ahead = 0.0 if self.shares_clock else received - sent
        ahead, track = self._ahead, f"worker {self.number}"
        return [
            attrs.evolve(span, track=track, start=span.start + ahead, end=span.end + ahead)
            for span in spans
            if span.track == WORKER
        ]
