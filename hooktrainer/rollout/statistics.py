"""Metrics of an engine, merged over all of its threads."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from time import perf_counter

from hooktrainer.metrics import Metric, Rate, Sum, merge


class Stopwatch:
    """Divides the time of a worker into laps."""

    def __init__(self) -> None:
        self._since = perf_counter()

    def restart(self) -> None:
        """Begin a lap now, and leave out the time since the last one."""
        self._since = perf_counter()

    def lap(self) -> float:
        """Return the seconds since the last lap, or since the restart, and begin a new lap."""
        now = perf_counter()
        seconds, self._since = now - self._since, now
        return seconds


class RolloutStats:
    """Merges metrics until they are taken, and attributes the waits of idle workers. Thread-safe.

    A wait during a weight sync counts as a wait for weights, any other as a wait for groups.
    """

    def __init__(self) -> None:
        self._metrics: dict[str, Metric] = {}
        self._lock = threading.Lock()
        self._synced_s = 0.0
        self._sync_began: float | None = None

    def record(self, metrics: Mapping[str, Metric]) -> None:
        """Merge metrics into those that were not taken yet."""
        with self._lock:
            for key, metric in metrics.items():
                known = self._metrics.get(key)
                self._metrics[key] = metric if known is None else merge(known, metric)

    def take(self) -> Mapping[str, Metric]:
        """Return the metrics since the last call."""
        with self._lock:
            taken, self._metrics = self._metrics, {}
        return taken

    def begin_sync(self) -> None:
        """Note the start of a weight sync; repeated calls have no effect."""
        with self._lock:
            self._sync_began = self._sync_began or perf_counter()

    def end_sync(self) -> None:
        """Note the end of a weight sync, whether it succeeded or not."""
        with self._lock:
            if self._sync_began is not None:
                self._synced_s += perf_counter() - self._sync_began
            self._sync_began = None

    def mark(self) -> tuple[float, float]:
        """Return the start of a wait: the current time, and the seconds of weight sync so far."""
        with self._lock:
            now = perf_counter()
            return now, self._synced(now)

    def waited(self, mark: tuple[float, float]) -> None:
        """Record a wait that started at the mark and ends now."""
        began, synced_before = mark
        with self._lock:
            now = perf_counter()
            seconds, synced = now - began, self._synced(now) - synced_before
        self.record({"timing_s/engine_wait_groups": Sum(seconds - synced), "timing_s/engine_wait_weights": Sum(synced)})

    def generated(self, seconds: float, trajectories: int, tokens: int) -> None:
        """Record the busy seconds of a worker, and its completed trajectories and tokens."""
        self.record(
            {
                "timing_s/generate": Sum(seconds),
                "rollout/num_tokens": Sum(tokens),
                "rollout/num_trajectories": Sum(trajectories),
                "perf/rollout_tokens_per_worker_second": Rate(tokens, seconds),
            }
        )

    def _synced(self, now: float) -> float:
        return self._synced_s + (now - self._sync_began if self._sync_began is not None else 0.0)
