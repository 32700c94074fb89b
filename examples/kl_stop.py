"""A custom plugin: stop when the policy drifts too far from the sampler."""

import attrs

from hooktrainer import Plugin, Priority, on
from hooktrainer.events import StepEnd


@attrs.define(kw_only=True)
class KLStop(Plugin):
    """Stop when the policy drifts too far from the sampler."""

    limit: float = 0.2
    """Largest allowed size of `actor/ppo_kl`."""

    @on(StepEnd, priority=Priority.REPORT, needs=["metrics.row"])
    def check_kl(self, event: StepEnd) -> None:
        """Stop the run beyond the limit, in either direction or at NaN."""
        if not abs(event.record.row["actor/ppo_kl"]) <= self.limit:
            event.control.stop(f"ppo_kl above {self.limit}")
