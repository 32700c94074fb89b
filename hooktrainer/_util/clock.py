"""The clock of a real run."""

from __future__ import annotations

from time import perf_counter


class SystemClock:
    """Seconds of the machine's monotonic clock."""

    def now(self) -> float:
        """Seconds since some fixed moment."""
        return perf_counter()
