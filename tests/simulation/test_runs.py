"""Staleness strategies in whole runs: the real loop and buffer in virtual time."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hooktrainer import Plugin, on
from hooktrainer.config import TrainerConfig
from hooktrainer.errors import StarvedError
from hooktrainer.events import IterationEnd
from hooktrainer.ports import Example, Group, Prompt
from hooktrainer.replay.dispatcher import Dispatcher
from hooktrainer.replay.options import ReplayOptions
from hooktrainer.replay.staleness import Drop
from hooktrainer.simulation import Constant, LogNormal, Schedule, Simulation, VirtualClock
from hooktrainer.simulation.ports import NumberedPrompts, SimulatedEngine, VirtualBuffer
from hooktrainer_plugins.staleness import Staleness


def config(steps: int | None, *, mini: int, updates: int = 1, warmup: int = 0) -> TrainerConfig:
    return TrainerConfig(
        total_steps=steps,
        train_batch_size=updates * mini,
        ppo_mini_batch_size=mini,
        parameter_sync_step=updates,
        num_warmup_batches=warmup,
    )


def staleness(strategy: str, threshold: int, *, in_order: bool = False) -> Staleness:
    return Staleness(max_off_policy_threshold=threshold, max_off_policy_strategy=strategy, in_order=in_order)


@attrs.define(kw_only=True)
class Seen(Plugin):
    """Records the staleness of every update."""

    updates: list[tuple[int, ...]] = attrs.field(factory=list)

    @on(IterationEnd)
    def keep(self, event: IterationEnd) -> None:
        self.updates.append(event.groups)


@pytest.mark.parametrize(
    ("warmup", "first", "later"),
    [(0, [1, 1, 1, 1], [1, 1, 1, 1]), (1, [1, 1, 1, 1], [2, 1, 1, 1]), (4, [1, 1, 1, 1], [2, 2, 2, 2])],
)
def test_warm_up_batches_are_trained_one_step_late(warmup: int, first: list[int], later: list[int]) -> None:
    seen = Seen()
    Simulation(config=config(3, mini=2, updates=4, warmup=warmup), plugins=[staleness("drop", 2), seen]).run()

    assert seen.updates == [(s, s) for s in [*first, *later, *later]]


class Prompts:
    """A prompt source that repeats texts, or returns each once."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = iter(texts)
        self._ahead = list(itertools.islice(self._texts, 1))

    @property
    def exhausted(self) -> bool:
        return not self._ahead

    def take(self, count: int) -> Sequence[Prompt]:
        texts = self._ahead + list(itertools.islice(self._texts, count))
        self._ahead = texts[count:]
        return [Prompt(Example(text), np.zeros(1, np.int64)) for text in texts[:count]]

    def heldout(self, count: int) -> Sequence[Prompt]:
        return []

    def take_metrics(self) -> dict[str, object]:
        return {}


def slow_and_fast(strategy: str) -> tuple[Simulation, list[list[tuple[str, int]]]]:
    """Simulate 12 steps with three fast prompts "A" for each slow prompt "B", which takes three times as long.

    The fast prompts alone fill a batch. Return the texts and staleness of the trained groups of each step.
    """
    groups: list[Group] = []

    def seconds(group: Group) -> float:
        groups.append(group)
        return {"A": 1.0, "B": 3.0}[group.prompt.text]

    simulation = Simulation(
        config=config(12, mini=1, warmup=1),
        plugins=[staleness(strategy, 2)],
        schedule=Schedule(train=Constant(1)),
        group_seconds=seconds,
        groups_at_once=100,
        prompts=Prompts(itertools.cycle("AAAB")),
    )
    simulation.run()
    by_number = {group.number: group for group in groups}
    batches = [[by_number[number] for number in batch] for batch in simulation.learner.batches]
    return simulation, [[(g.prompt.text, g.staleness(k)) for g in batch] for k, batch in enumerate(batches, start=1)]


class TestSlowPrompts:
    def test_drop_never_trains_slow_prompts_and_logs_it_once(self, caplog: pytest.LogCaptureFixture) -> None:
        simulation, trained = slow_and_fast("drop")

        assert {text for batch in trained for text, _ in batch} == {"A"}
        assert simulation.buffer.ledger.dropped["stale"].groups >= 3
        said = [record for record in caplog.messages if "dropped as stale" in record]
        assert said == [
            "prompt 'B' was dropped as stale 3 times and never trained; its answers may take longer than others"
        ]

    def test_wait_blocks_for_slow_prompts_and_trains_them_at_the_threshold(self) -> None:
        """The wait starts at S = T, because the group would be above the threshold one step later."""
        simulation, trained = slow_and_fast("wait")

        slow = [s for batch in trained for text, s in batch if text == "B"]
        assert len(slow) >= 2
        assert set(slow) == {2}
        assert simulation.buffer.ledger.dropped == {}

    @pytest.mark.parametrize("strategy", ["requeue", "wait", "pace"])
    def test_strategies_other_than_drop_train_every_prompt_once(self, strategy: str) -> None:
        texts = [f"{place}{'AAAB'[place % 4]}" for place in range(40)]
        dispatched: dict[int, str] = {}

        def seconds(group: Group) -> float:
            dispatched[group.number] = group.prompt.text
            return 1.0 + 2 * group.prompt.text.endswith("B")

        simulation = Simulation(
            config=config(None, mini=2, warmup=0 if strategy == "pace" else 1),
            plugins=[staleness(strategy, 2)],
            schedule=Schedule(train=Constant(1)),
            group_seconds=seconds,
            groups_at_once=100,
            prompts=Prompts(texts),
        )
        simulation.run()

        trained = [dispatched[number] for batch in simulation.learner.batches for number in batch]
        assert sorted(trained) == sorted(texts)

    def test_requeue_loses_no_prompt_when_the_data_ends(self) -> None:
        dispatched: dict[int, str] = {}

        def seconds(group: Group) -> float:
            dispatched[group.number] = group.prompt.text
            return 10.0 if group.number == 0 else 1.0

        simulation = Simulation(
            config=config(None, mini=1, warmup=1),
            plugins=[staleness("requeue", 2)],
            group_seconds=seconds,
            groups_at_once=9,
            prompts=Prompts("ABC"),
        )
        simulation.run()

        trained = [dispatched[number] for batch in simulation.learner.batches for number in batch]
        assert trained == ["B", "C", "A"]


def test_pace_evicts_no_group_without_need_for_capacity() -> None:
    simulation = Simulation(
        config=config(2, mini=1, updates=2),
        plugins=[staleness("pace", 1)],
        schedule=Schedule(generate=Constant(1)),
        limits=ReplayOptions(capacity=1, when_full="evict"),
    )
    simulation.run()

    assert simulation.buffer.ledger.dropped == {}


class Lagging(VirtualBuffer):
    """Gives every group the dispatch step of the previous version."""

    def dispatch(self, prompts: Sequence[Prompt], groups_per_step: int | None = None) -> int:
        self._version -= 1
        try:
            return super().dispatch(prompts, groups_per_step)
        finally:
            self._version += 1


class Nothing(Drop):
    """A strategy that evicts every group."""

    def evicts(self, staleness: int) -> bool:
        return staleness >= self.threshold


class TestStarving:
    def test_rollouts_that_are_always_stale_starve_the_run_with_the_numbers(self) -> None:
        clock = VirtualClock()
        buffer = Lagging(ReplayOptions(sample_timeout_s=30), clock)
        buffer.set_policy(Drop(1))
        engine = SimulatedEngine(clock, lambda _: 1.0, groups_at_once=4, overlaps=True)
        engine.start(buffer)
        buffer.on_dispatch = engine.serve
        dispatcher = Dispatcher(NumberedPrompts(), buffer, groups_per_step=2)
        dispatcher.request(2)

        with pytest.raises(
            StarvedError,
            match=r"starved for 30 s: 0 of 2 groups sampleable in step 1, 6\d evicted, smallest S=2, "
            r"strategy Drop\(threshold=1",
        ):
            buffer.sample(2, 1, dispatcher.replace)
        assert clock.now() == pytest.approx(30, abs=1e-5)

    @pytest.mark.parametrize("overlaps", [True, False])
    def test_starved_run_ends_without_a_sample_timeout(self, overlaps: bool) -> None:
        plugin = staleness(f"{__name__}:Nothing", 1)
        simulation = Simulation(config=config(4, mini=2), plugins=[plugin], groups_at_once=2, overlaps=overlaps)

        with pytest.raises(StarvedError, match=r"no mini-batch of 2 .* in step 1.* Nothing\(threshold=1"):
            simulation.run()

    def test_group_that_times_out_is_replaced(self) -> None:
        simulation = Simulation(
            config=config(2, mini=2),
            limits=ReplayOptions(group_timeout_s=0.3),
            group_seconds=lambda group: 50.0 if group.number == 1 else 0.1,
            groups_at_once=4,
        )
        outcome = simulation.run()

        assert simulation.learner.batches == [(0, 2), (3, 4)]
        assert outcome.seconds_per_step == pytest.approx(0.25, abs=1e-5)


@st.composite
def settings_of_runs(draw: st.DrawFn) -> Simulation:
    strategy = draw(st.sampled_from(["drop", "requeue", "wait", "pace"]))
    threshold, updates, mini = (draw(st.integers(1, 4)) for _ in range(3))
    ahead = 0 if strategy == "pace" else draw(st.integers(0, updates * (threshold - 1)))
    return Simulation(
        config=config(draw(st.integers(1, 8)), mini=mini, updates=updates, warmup=ahead),
        plugins=[staleness(strategy, threshold, in_order=draw(st.booleans()))],
        schedule=Schedule(
            generate=LogNormal(draw(st.floats(0.01, 10)), draw(st.floats(0, 2))),
            train=Constant(draw(st.floats(0, 4))),
            sync=Constant(draw(st.sampled_from([0, 0.5]))),
            seed=draw(st.integers(0, 2**16)),
        ),
        limits=ReplayOptions(
            capacity=draw(st.none() | st.integers(mini, 30)),
            when_full=draw(st.sampled_from(["block", "evict"])),
        ),
        groups_at_once=draw(st.integers(1, 12)),
        overlaps=draw(st.booleans()),
    )


@settings(deadline=None)
@given(settings_of_runs())
def test_every_group_is_counted_once_and_every_strategy_respects_its_threshold(run: Simulation) -> None:
    outcome = run.run()  # the buffer raises if the ledger is off when a version moves

    (plugin,) = run.plugins
    strategy, threshold = plugin.max_off_policy_strategy, plugin.max_off_policy_threshold
    batches, ledger, mini = run.learner.batches, run.buffer.ledger, run.config.ppo_mini_batch_size
    trained = [number for batch in batches for number in batch]
    assert {len(batch) for batch in batches} == {mini}
    assert len(batches) == run.config.total_steps * run.config.parameter_sync_step
    assert len(set(trained)) == len(trained) == ledger.sampled.groups
    states = {key: metric.value for key, metric in run.buffer.take_metrics().items()}
    assert ledger.outstanding == sum(states[f"replay/{state}"] for state in ("pending", "running", "finished"))
    assert ledger.imbalance == 0
    assert min(run.staleness.counts) >= 1
    if strategy in ("drop", "requeue") or (strategy == "pace" and plugin.in_order):
        assert outcome.staleness_max <= threshold
    if strategy == "pace":
        assert outcome.age_mean <= threshold - 1
    if strategy in ("wait", "pace"):
        assert ledger.dropped.keys() <= {"capacity"}
    if not run.overlaps and not run.config.num_warmup_batches and strategy != "pace":
        assert outcome.staleness_max == 1
