"""Bound the staleness of training data, and report it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Final

import attrs

from hooktrainer import Plugin, Priority, on
from hooktrainer.events import FitStart, IterationEnd, StepEnd
from hooktrainer.metrics import Max, Mean, Metric, Min, Sum, plain
from hooktrainer.plugin import port
from hooktrainer.ports import STRATEGIES, ReplayBuffer, Strategy

if TYPE_CHECKING:
    from hooktrainer import Config

_LOG: Final = logging.getLogger("hooktrainer")
PREFIX: Final = "training/off_policy"
LENGTH_BIAS: Final = f"{PREFIX}/length_bias"


@attrs.define(kw_only=True)
class Staleness(Plugin):
    """Set how the replay buffer bounds staleness: the age of training data in weight versions, where 1 is fresh."""

    adds_metrics: ClassVar = (f"{PREFIX}/",)

    max_off_policy_threshold: int = attrs.field(default=4, validator=attrs.validators.ge(1))
    """T, the largest staleness that is fresh enough to train on; the smallest staleness is 1."""

    max_off_policy_strategy: str = STRATEGIES.option("drop")
    """`drop` evicts finished groups with S > T. `requeue` does too, and dispatches their prompts again. `wait` blocks
    sampling while an unfinished group has S >= T. `pace` dispatches no more than T steps can use. Or a subclass of
    `hooktrainer.ports.Strategy`, as `package.module:Class` or `file.py:Class`."""

    in_order: bool = False
    """Sample in the order of dispatch, without passing over groups that are not finished."""

    length_bias_band: tuple[float, float] = (0.8, 1.25)
    """Range of the mean length of trained over generated answers without a warning."""

    buffer: ReplayBuffer = port()
    _strategy: Strategy = attrs.field(init=False, repr=False)
    _warned: bool = attrs.field(default=False, init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        strategy = STRATEGIES.resolve(self.max_off_policy_strategy)
        self._strategy = strategy(self.max_off_policy_threshold, self.in_order)

    def check(self, config: Config) -> Iterable[str]:
        """Refuse a warm-up that the strategy ignores, or evicts in every step."""
        warmup, updates_per_step = config.trainer.num_warmup_batches, config.trainer.parameter_sync_step
        oldest = 1 + -(-warmup // updates_per_step)
        if self._strategy.evicts(oldest):
            allowed = updates_per_step * (self.max_off_policy_threshold - 1)
            yield (
                f"num_warmup_batches = {warmup} is more than parameter_sync_step x (max_off_policy_threshold - 1) = "
                f"{updates_per_step} x {self.max_off_policy_threshold - 1} = {allowed}: every step would evict "
                f"groups that were dispatched ahead. Raise the threshold to {oldest} or lower W to {allowed}."
            )
        groups_per_step = config.trainer.train_batch_size
        if warmup and self._strategy.budget(version=0, trained=0, outstanding=0, per_step=groups_per_step) is not None:
            yield (
                f"num_warmup_batches = {warmup} has no effect: '{self.max_off_policy_strategy}' dispatches by its "
                f"budget, {self.max_off_policy_threshold} x train_batch_size ahead. Set it to 0."
            )

    @on(FitStart, priority=Priority.PREPARE, makes=["replay.policy"])
    def set_strategy(self, _event: FitStart) -> None:
        """Set the strategy of the buffer."""
        self.buffer.set_policy(self._strategy)

    @on(IterationEnd, priority=Priority.COLLECT, needs=["iteration.metrics"], adds=["metrics.row"])
    def collect(self, event: IterationEnd) -> None:
        """Report the staleness of trained and of evicted groups, each group once."""
        in_queue = [s - 1 - flown for s, flown in zip(event.groups, event.in_flight, strict=False)]
        event.record.add(
            {
                **_spread(f"{PREFIX}/staleness", event.groups),
                **_spread(f"{PREFIX}/in_flight", event.in_flight),
                **_spread(f"{PREFIX}/in_queue", in_queue),
                **_spread(f"{PREFIX}/updates_behind", event.updates_behind),
                **_spread(f"{PREFIX}/trajectory_spans", event.spans),
                **_evicted(event.evicted),
            }
        )
        self._watch_lengths(event.metrics.get(LENGTH_BIAS))

    @on(StepEnd, priority=Priority.COLLECT, adds=["metrics.row"])
    def collect_leftovers(self, event: StepEnd) -> None:
        """Report the groups that were evicted after the last iteration, when the data ended."""
        event.record.add(_evicted(event.evicted))

    def _watch_lengths(self, reported: object) -> None:
        """Warn once if trained answers are shorter or longer than generated ones."""
        bias = plain(reported)
        low, high = self.length_bias_band
        if isinstance(bias, float) and not low <= bias <= high and not self._warned:
            self._warned = True
            _LOG.warning(
                "trained answers are %.2f times as long as generated ones, outside of length_bias_band = (%g, %g): "
                "the strategy '%s' drops some lengths more often than others",
                bias,
                low,
                high,
                self.max_off_policy_strategy,
            )


def _evicted(staleness: Sequence[int]) -> Mapping[str, Metric]:
    return {
        f"{PREFIX}/evicted_samples": Sum(len(staleness)),
        **_spread(f"{PREFIX}/evicted_samples_staleness", staleness),
    }


def _spread(key: str, values: Sequence[int]) -> Mapping[str, Metric]:
    if not values:
        return {}
    return {
        f"{key}/mean": Mean(sum(values), len(values)),
        f"{key}/max": Max(max(values)),
        f"{key}/min": Min(min(values)),
    }
