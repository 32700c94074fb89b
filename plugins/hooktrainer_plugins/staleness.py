"""Bound how old the data may be that is trained on, and report how old it was."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal

import attrs

from hooktrainer import Plugin, Priority, on
from hooktrainer.events import FitStart, IterationEnd, StepEnd
from hooktrainer.metrics import Max, Mean, Metric, Min, Sum
from hooktrainer.plugin import port
from hooktrainer.ports import ReplayBuffer, StalenessPolicy

if TYPE_CHECKING:
    from hooktrainer.config import Config

PREFIX: Final = "training/off_policy"


@attrs.frozen
class Drop:
    """Throw a finished group away if it is older than the threshold when it is sampled."""

    threshold: int

    def evicts(self, staleness: int) -> bool:
        """S > T."""
        return staleness > self.threshold

    def waits_for(self, staleness: int) -> bool:  # noqa: ARG002 (never waits)
        """Never."""
        return False


@attrs.frozen
class Wait:
    """Throw nothing away; block sampling while a group that is still being generated reaches the threshold."""

    threshold: int

    def evicts(self, staleness: int) -> bool:  # noqa: ARG002 (never evicts)
        """Never."""
        return False

    def waits_for(self, staleness: int) -> bool:
        """S >= T."""
        return staleness >= self.threshold


STRATEGIES: Final[Mapping[str, Callable[[int], StalenessPolicy]]] = {"drop": Drop, "wait": Wait}


@attrs.define(kw_only=True)
class Staleness(Plugin):
    """Set the staleness policy of the replay buffer; S = k - p + 1, so 1 is fresh."""

    max_off_policy_threshold: int = attrs.field(default=4, validator=attrs.validators.ge(1))
    """T, the largest staleness that counts as fresh enough; S starts at 1, so T does too."""

    max_off_policy_strategy: Literal["drop", "wait"] = "drop"
    """`drop` evicts finished groups with S > T; `wait` blocks sampling while an unfinished group has S >= T."""

    buffer: ReplayBuffer = port()

    def check(self, config: Config) -> Iterable[str]:
        """Refuse a warm-up that would make `drop` evict in every step."""
        warmup, per_step = config.trainer.num_warmup_batches, config.trainer.parameter_sync_step
        allowed = per_step * (self.max_off_policy_threshold - 1)
        if self.max_off_policy_strategy == "drop" and warmup > allowed:
            yield (
                f"num_warmup_batches = {warmup} is more than parameter_sync_step x (max_off_policy_threshold - 1) = "
                f"{per_step} x {self.max_off_policy_threshold - 1} = {allowed}: every step would evict what was "
                f"dispatched ahead. Raise the threshold to {-(-warmup // per_step) + 1} or lower W to {allowed}."
            )

    @on(FitStart, priority=Priority.PREPARE, makes=["replay.policy"])
    def hand_over(self, _event: FitStart) -> None:
        """Give the buffer its policy."""
        self.buffer.set_policy(STRATEGIES[self.max_off_policy_strategy](self.max_off_policy_threshold))

    @on(IterationEnd, priority=Priority.COLLECT, needs=["iteration.metrics"], adds=["metrics.row"])
    def collect(self, event: IterationEnd) -> None:
        """Report the staleness of what was trained and of what was evicted, each group counted once."""
        event.record.add({**_spread(f"{PREFIX}/staleness", event.groups), **_evicted(event.evicted)})

    @on(StepEnd, priority=Priority.COLLECT, adds=["metrics.row"])
    def collect_leftovers(self, event: StepEnd) -> None:
        """Report what was evicted after the last iteration, when the data ended."""
        event.record.add(_evicted(event.evicted))


def _evicted(staleness: Sequence[int]) -> Mapping[str, Metric]:
    return {
        f"{PREFIX}/evicted_samples": Sum(len(staleness)),
        **_spread(f"{PREFIX}/evicted_samples_staleness", staleness),
    }


def _spread(key: str, staleness: Sequence[int]) -> Mapping[str, Metric]:
    if not staleness:
        return {}
    return {
        f"{key}/mean": Mean(sum(staleness), len(staleness)),
        f"{key}/max": Max(max(staleness)),
        f"{key}/min": Min(min(staleness)),
    }
