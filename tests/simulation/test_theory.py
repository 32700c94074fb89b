"""Bounds and costs of the staleness strategies over 2,000 steps of saturated generation."""

from __future__ import annotations

import pytest

from hooktrainer.config import TrainerConfig
from hooktrainer.simulation import Constant, LogNormal, Outcome, Schedule, Simulation
from hooktrainer_plugins.staleness import Staleness

pytestmark = pytest.mark.slow


def saturated(strategy: str, *, in_order: bool = False) -> Outcome:
    """Simulate an age budget of two steps, 64 slots, answers of 4 s on average with a long tail, and updates of 1 s."""
    return Simulation(
        config=TrainerConfig(
            total_steps=2000,
            train_batch_size=8,
            ppo_mini_batch_size=8,
            num_warmup_batches=0 if strategy == "pace" else 2,
        ),
        plugins=[Staleness(max_off_policy_threshold=3, max_off_policy_strategy=strategy, in_order=in_order)],
        schedule=Schedule(generate=LogNormal(4, 1), train=Constant(1)),
        groups_at_once=64,
    ).run()


class TestTheory:
    def test_pace_reaches_its_mean_age_without_length_bias(self) -> None:
        """After each step, the groups of T - 1 steps remain in flight and age by one."""
        outcome = saturated("pace")

        assert outcome.age_mean == pytest.approx(2.00, abs=0.02)
        assert outcome.length_bias == pytest.approx(1.0, abs=0.01)
        assert outcome.staleness_max > 20  # only the mean is bounded
        assert outcome.of_limit == pytest.approx(0.52, abs=0.03)

    def test_drop_bounds_the_maximum_staleness_and_prefers_short_answers(self) -> None:
        outcome = saturated("drop")

        assert outcome.staleness_max == 3
        assert outcome.length_bias == pytest.approx(0.58, abs=0.03)
        assert outcome.wasted == pytest.approx(0.53, abs=0.03)
        assert outcome.of_limit == pytest.approx(0.43, abs=0.03)

    def test_pace_in_order_bounds_the_maximum_staleness_and_waits_longer(self) -> None:
        outcome = saturated("pace", in_order=True)

        assert outcome.staleness_max == 3
        assert outcome.age_mean == pytest.approx(2.00, abs=0.02)
        assert outcome.length_bias == pytest.approx(1.0, abs=0.01)
        assert outcome.of_limit == pytest.approx(0.17, abs=0.02)
