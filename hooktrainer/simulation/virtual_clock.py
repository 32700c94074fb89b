"""A clock that is advanced by hand, and runs the actions that become due."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable


class VirtualClock:
    """Runs scheduled actions in the order of their due times; ties run in the order of scheduling."""

    def __init__(self) -> None:
        self._now = 0.0
        self._num_scheduled = 0
        self._due: list[tuple[float, int, Callable[[], None]]] = []

    def now(self) -> float:
        """Return the seconds since the start."""
        return self._now

    def schedule(self, delay: float, action: Callable[[], None]) -> None:
        """Schedule an action after `delay` seconds."""
        heapq.heappush(self._due, (self._now + _seconds(delay), self._num_scheduled, action))
        self._num_scheduled += 1

    def advance(self, seconds: float) -> None:
        """Advance the time, and run all actions that become due, including those scheduled by other actions."""
        end = self._now + _seconds(seconds)
        while self._due and self._due[0][0] <= end:
            self.run_next()
        self._now = end

    def run_next(self, within: float = math.inf) -> bool:
        """Advance to the next action and run it; return False if none is due within that many seconds."""
        if not self._due or self._due[0][0] > self._now + within:
            return False
        self._now, _, action = heapq.heappop(self._due)
        action()
        return True


def _seconds(seconds: float) -> float:
    if not 0 <= seconds < math.inf:
        raise ValueError(f"time passes by a finite number of seconds of at least 0, found {seconds}")
    return seconds
