"""Metrics of an engine, merged over all of its threads."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from time import perf_counter
from typing import Final

import attrs

from hooktrainer._util.timeline import KeptTimeline, Labels
from hooktrainer.metrics import Metric, Rate, Sum, merge
from hooktrainer.ports import Timeline

SYNC: Final = "weight sync"
"""The track of weight syncs, as the engine sees them."""


@attrs.frozen
class Lap:
    """A stretch of time of a worker, in seconds of the machine's monotonic clock."""

    start: float
    end: float

    @property
    def seconds(self) -> float:
        """Length of the lap."""
        return self.end - self.start


class Stopwatch:
    """Divides the time of a worker into laps."""

    def __init__(self) -> None:
        self._since = perf_counter()

    def restart(self) -> None:
        """Begin a lap now, and leave out the time since the last one."""
        self._since = perf_counter()

    def lap(self) -> Lap:
        """Return the time since the last lap, or since the restart, and begin a new lap."""
        now = perf_counter()
        lap, self._since = Lap(self._since, now), now
        return lap


class RolloutStats:
    """Merges metrics until they are taken, and attributes the waits of idle workers. Thread-safe.

    A wait during a weight sync counts as a wait for weights, any other as a wait for groups.
    """

    def __init__(self) -> None:
        self._metrics: dict[str, Metric] = {}
        self._lock = threading.Lock()
        self._synced_s = 0.0
        self._sync_began: float | None = None
        self.timeline: Timeline = KeptTimeline()
        """Spans of the workers and of weight syncs."""

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
            began, now = self._sync_began, perf_counter()
            if began is not None:
                self._synced_s += now - began
            self._sync_began = None
        if began is not None:
            self.timeline.add(SYNC, "stage and switch", began, now)

    def mark(self) -> tuple[float, float]:
        """Return the start of a wait: the current time, and the seconds of weight sync so far."""
        with self._lock:
            now = perf_counter()
            return now, self._synced(now)

    def waited(self, mark: tuple[float, float], worker: str) -> None:
        """Record a wait of a worker that started at the mark and ends now."""
        began, synced_before = mark
        with self._lock:
            now = perf_counter()
            seconds, synced = now - began, self._synced(now) - synced_before
        self.record({"timing_s/engine_wait_groups": Sum(seconds - synced), "timing_s/engine_wait_weights": Sum(synced)})
        cause = "weights" if synced > seconds / 2 else "groups"
        self.timeline.add(worker, f"wait for {cause}", began, now)

    def generated(self, lap: Lap, trajectories: int, tokens: int, worker: str, labels: Labels) -> None:
        """Record the busy time of a worker, and its completed trajectories and tokens. Labels describe the group."""
        seconds = lap.seconds
        self.record(
            {
                "timing_s/generate": Sum(seconds),
                "rollout/num_tokens": Sum(tokens),
                "rollout/num_trajectories": Sum(trajectories),
                "perf/rollout_tokens_per_worker_second": Rate(tokens, seconds),
            }
        )
        self.timeline.add(worker, "generate", lap.start, lap.end, {**labels, "tokens": tokens})

    def _synced(self, now: float) -> float:
        return self._synced_s + (now - self._sync_began if self._sync_began is not None else 0.0)
