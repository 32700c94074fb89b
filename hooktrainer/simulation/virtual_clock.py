"""A clock whose time passes only when it is told to, with the events that fall due on the way."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable


class VirtualClock:
    """Runs scheduled actions in the order in which they fall due; ties in the order of scheduling."""

    def __init__(self) -> None:
        self._now = 0.0
        self._num_scheduled = 0
        self._due: list[tuple[float, int, Callable[[], None]]] = []

    def now(self) -> float:
        """Seconds since the start."""
        return self._now

    def schedule(self, delay: float, action: Callable[[], None]) -> None:
        """Run `action` that many seconds from now."""
        heapq.heappush(self._due, (self._now + _seconds(delay), self._num_scheduled, action))
        self._num_scheduled += 1

    def advance(self, seconds: float) -> None:
        """Let time pass; what falls due meanwhile runs, also if it is scheduled on the way."""
        end = self._now + _seconds(seconds)
        while self._due and self._due[0][0] <= end:
            self.run_next()
        self._now = end

    def run_next(self, within: float = math.inf) -> bool:
        """Go to the next action and run it, unless none falls due within so many seconds; returns whether one did."""
        if not self._due or self._due[0][0] > self._now + within:
            return False
        self._now, _, action = heapq.heappop(self._due)
        action()
        return True


def _seconds(seconds: float) -> float:
    if not 0 <= seconds < math.inf:
        raise ValueError(f"time passes by a finite number of seconds of at least 0, found {seconds}")
    return seconds
