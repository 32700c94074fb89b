"""What an engine measures, from all of its threads."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from time import perf_counter

from hooktrainer.metrics import Metric, Rate, Sum, merge


class RolloutStats:
    """Merges metrics until they are taken, and tells for what an idle worker waited.

    Waiting while new weights are brought in is waiting for weights, any other is waiting for groups.
    """

    def __init__(self) -> None:
        self._metrics: dict[str, Metric] = {}
        self._lock = threading.Lock()
        self._synced_s = 0.0
        self._sync_began: float | None = None

    def record(self, metrics: Mapping[str, Metric]) -> None:
        """Merge these into what was not taken yet."""
        with self._lock:
            for key, metric in metrics.items():
                known = self._metrics.get(key)
                self._metrics[key] = metric if known is None else merge(known, metric)

    def take(self) -> Mapping[str, Metric]:
        """Metrics since the last call."""
        with self._lock:
            taken, self._metrics = self._metrics, {}
        return taken

    def begin_sync(self) -> None:
        """New weights are being brought in."""
        with self._lock:
            self._sync_began = self._sync_began or perf_counter()

    def end_sync(self) -> None:
        """New weights are in use, or given up."""
        with self._lock:
            if self._sync_began is not None:
                self._synced_s += perf_counter() - self._sync_began
            self._sync_began = None

    def mark(self) -> tuple[float, float]:
        """The beginning of a wait: seconds now, and seconds of weight sync so far."""
        with self._lock:
            now = perf_counter()
            return now, self._synced(now)

    def waited(self, mark: tuple[float, float]) -> None:
        """The wait that began at the mark is over."""
        began, synced_before = mark
        with self._lock:
            now = perf_counter()
            seconds, synced = now - began, self._synced(now) - synced_before
        self.record({"timing_s/engine_wait_groups": Sum(seconds - synced), "timing_s/engine_wait_weights": Sum(synced)})

    def generated(self, seconds: float, trajectories: int, tokens: int) -> None:
        """A worker was busy for so long, and completed so much."""
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
