"""Results of a simulated run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

import attrs

from hooktrainer.replay.ledger import Ledger
from hooktrainer.simulation.ports import SimulatedEngine


@attrs.frozen(kw_only=True)
class Outcome:
    """Metrics for comparing settings; shares are between 0 and 1."""

    steps: int
    staleness_mean: float
    """Mean staleness of trained groups; 1 is fresh."""
    staleness_p99: int
    staleness_max: int
    age_mean: float
    """Mean number of versions between dispatch and training: staleness minus 1."""
    drop_rate: float
    """Share of groups that were dropped."""
    wasted: float
    """Share of the generation time that was spent on dropped groups."""
    length_bias: float | None
    """Mean length of trained groups divided by that of all generated groups."""
    learner_idle: float
    """Share of the time in which the loop waited for groups."""
    engine_idle: float
    """Mean share of the engine's slots that were free."""
    seconds_per_step: float
    overlap_limit: float
    """Seconds per step if the slower of engine and learner never waited; their sum if they do not overlap."""
    of_limit: float
    """`overlap_limit` divided by `seconds_per_step`: 1 is at the limit."""

    @classmethod
    def measure(
        cls,
        *,
        steps: int,
        seconds: float,
        staleness: Mapping[int, int],
        ledger: Ledger,
        engine: SimulatedEngine,
        learner_s: float,
        groups_at_once: int,
        overlaps: bool,
    ) -> Self:
        """Compute the metrics from the ledger and the times of a run."""
        trained, dropped = ledger.sampled.groups, ledger.dropped.values()
        kept_tokens = ledger.finished.tokens - sum(tally.tokens for tally in dropped)
        num_dropped = sum(tally.groups for tally in dropped)
        mean = sum(s * count for s, count in staleness.items()) / trained
        group_s = sum(engine.claimed) / len(engine.claimed)
        busy = (trained * group_s / groups_at_once / steps, learner_s / steps)
        limit = max(busy) if overlaps else sum(busy)
        return cls(
            steps=steps,
            staleness_mean=mean,
            staleness_p99=_percentile(staleness, 0.99),
            staleness_max=max(staleness),
            age_mean=mean - 1,
            drop_rate=num_dropped / (trained + num_dropped),
            wasted=1 - kept_tokens / engine.tokens,
            length_bias=ledger.length_bias,
            learner_idle=1 - learner_s / seconds if seconds else 0.0,
            engine_idle=1 - engine.busy_s / (groups_at_once * seconds) if seconds else 0.0,
            seconds_per_step=seconds / steps,
            overlap_limit=limit,
            of_limit=limit * steps / seconds if seconds else 1.0,
        )


def _percentile(counts: Mapping[int, int], share: float) -> int:
    """Return the smallest value such that at least this share of all values is not above it."""
    total, seen = sum(counts.values()), 0
    for value in sorted(counts):
        seen += counts[value]
        if seen >= share * total:
            return value
    raise ValueError("a percentile of nothing")
