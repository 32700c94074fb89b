"""What a simulated run comes to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

import attrs

from hooktrainer.replay.ledger import Ledger
from hooktrainer.simulation.ports import SimulatedEngine


@attrs.frozen(kw_only=True)
class Outcome:
    """The numbers by which settings are compared; shares are between 0 and 1."""

    steps: int
    staleness_mean: float
    """Of trained groups, where 1 is fresh."""
    staleness_p99: int
    staleness_max: int
    age_mean: float
    """Versions between dispatch and training: staleness less 1."""
    drop_rate: float
    """Share of groups that ended without being trained."""
    wasted: float
    """Share of the generated seconds that went into those."""
    length_bias: float | None
    """Mean length of trained groups over that of all generated ones."""
    learner_idle: float
    """Share of the time that the loop waited for groups."""
    engine_idle: float
    """Share of the engine's places that were free, over time."""
    seconds_per_step: float
    overlap_limit: float
    """Seconds a step if whoever is slower, engine or learner, never waited; both together if they do not overlap."""
    of_limit: float
    """How near the run came: 1 is at the limit."""

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
        """From the books of a run."""
        trained, dropped = ledger.sampled.groups, ledger.dropped.values()
        kept_tokens = ledger.finished.tokens - sum(tally.tokens for tally in dropped)
        num_dropped = sum(tally.groups for tally in dropped)
        mean = sum(s * count for s, count in staleness.items()) / trained
        group_s = sum(engine.claimed) / len(engine.claimed)
        sides = (trained * group_s / groups_at_once / steps, learner_s / steps)
        limit = max(sides) if overlaps else sum(sides)
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
    """The smallest value that at least this share is not above."""
    total, seen = sum(counts.values()), 0
    for value in sorted(counts):
        seen += counts[value]
        if seen >= share * total:
            return value
    raise ValueError("a percentile of nothing")
