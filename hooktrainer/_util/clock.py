"""The clock of a real run."""

from __future__ import annotations

from time import perf_counter


class SystemClock:
    """Seconds of the machine's monotonic clock."""

    def now(self) -> float:
        """Return the seconds since a fixed moment."""
        return perf_counter()
