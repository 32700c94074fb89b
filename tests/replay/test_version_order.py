"""Staleness is at least 1: a version that goes backwards ends the run before an update."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from hooktrainer.config import TrainerConfig
from hooktrainer.errors import RolloutError, RunError
from hooktrainer.ports import Batch, Example, Group, Prompt, Replacement, Strategy, Trajectory
from hooktrainer.replay.buffer import GroupBuffer
from hooktrainer.replay.options import ReplayOptions
from hooktrainer.replay.staleness import Drop, Pace, Requeue, Wait
from hooktrainer.testing import FakeBuffer, FakeLearner, FakeSink, fake_ports
from hooktrainer.trainer import Trainer
from hooktrainer_plugins.log_after_collect import LogAfterCollect
from hooktrainer_plugins.metric_aggregation import MetricAggregation
from hooktrainer_plugins.staleness import Staleness
from hooktrainer_plugins.weight_sync import WeightSync


class Checked(Strategy):
    """A strategy that is never called with a staleness below 1."""

    def evicts(self, staleness: int) -> bool:
        assert staleness >= 1
        return False

    def waits_for(self, staleness: int) -> bool:
        assert staleness >= 1
        return False


STRATEGIES = [Strategy(), Drop(4), Drop(4, in_order=True), Requeue(4), Wait(4), Pace(4), Checked()]


def answer(*versions: int) -> Trajectory:
    count = len(versions)
    return Trajectory(
        tokens=np.zeros(count, np.int64),
        logprobs=np.zeros(count, np.float32),
        score=1.0,
        versions=np.array(versions, dtype=np.int64),
    )


def dispatched(version: int, policy: Strategy, limits: ReplayOptions | None = None) -> GroupBuffer:
    buffer = GroupBuffer(limits)
    buffer.set_policy(policy)
    buffer.advance(version)
    buffer.dispatch([Prompt(Example("q"), np.zeros(1, np.int64))])
    return buffer


@pytest.mark.parametrize("policy", STRATEGIES, ids=repr)
@pytest.mark.parametrize("state", ["pending", "running", "finished"])
@pytest.mark.parametrize(("version", "step", "staleness"), [(56, 1, -55), (1, 1, 0), (9, 8, -1)])
def test_a_step_before_the_stamp_of_a_group_is_refused(
    policy: Strategy, state: str, version: int, step: int, staleness: int
) -> None:
    buffer = dispatched(version, policy)
    if state != "pending":
        (group,) = buffer.claim(1)
        if state == "finished":
            buffer.finish(group, [answer(version)])
    with pytest.raises(RunError, match="version went backwards") as caught:
        buffer.sample(1, step, lambda _: None)
    assert f"stamped {version + 1}" in str(caught.value)
    assert f"S={staleness}" in str(caught.value)
    assert buffer.ledger.outstanding == 1


def test_a_group_behind_older_ones_is_found_too() -> None:
    buffer = dispatched(0, Drop(4))
    buffer.finish(buffer.claim(1)[0], [answer(0)])
    buffer.advance(56)
    buffer.dispatch([Prompt(Example("q"), np.zeros(1, np.int64))])
    with pytest.raises(RunError, match="version went backwards"):
        buffer.sample(1, 1, lambda _: None)
    assert buffer.ledger.sampled.groups == 0


def test_a_group_that_is_dispatched_while_the_loop_samples_is_checked() -> None:
    buffer = GroupBuffer()
    buffer.advance(56)
    with pytest.raises(RunError, match="S=-55"):
        buffer.sample(1, 1, lambda _: buffer.dispatch([Prompt(Example("q"), np.zeros(1, np.int64))]) and None)


def test_a_restored_group_that_is_newer_than_the_restored_version_is_refused() -> None:
    before = dispatched(56, Strategy())
    with pytest.raises(ValueError, match="stamped 57.*version 3"):
        GroupBuffer().load_state_dict({**before.state_dict(), "version": 3})


def test_a_batch_has_no_staleness_below_one() -> None:
    prompt = Prompt(Example("q"), np.zeros(1, np.int64))
    batch = Batch(groups=(Group(number=0, stamp=57, prompt=prompt, trajectories=(answer(0),)),))
    with pytest.raises(RunError, match="S=-55"):
        batch.ages(1, 0, 1)
    assert batch.ages(57, 0, 1)["groups"] == (1,)
    with pytest.raises(ValueError, match="evicted"):
        Batch(evicted=(1, 0))


@pytest.mark.parametrize("versions", [(1, 0, 0), (57, 2), (3, 3, 2)])
def test_an_answer_whose_versions_descend_fails_its_group(versions: tuple[int, ...]) -> None:
    buffer = dispatched(0, Strategy())
    buffer.finish(buffer.claim(1)[0], [answer(0, 0), answer(*versions)])
    with pytest.raises(RolloutError, match="group 0") as caught:
        buffer.sample(1, 1, lambda _: None)
    assert f"from {versions[0]} to {versions[-1]}" in str(caught.value.__cause__)


@pytest.mark.parametrize("checked_by_the_buffer", [True, False])
def test_a_run_whose_buffer_is_ahead_makes_no_update(checked_by_the_buffer: bool) -> None:
    class Unchecked(FakeBuffer):
        """A buffer of another author, which checks nothing."""

        def sample(self, size: int, step: int, refill: Callable[[Sequence[Replacement]], None]) -> Batch:
            return super().sample(size, step if checked_by_the_buffer else 57, refill)

    buffer, sink, learner = Unchecked(), FakeSink(), FakeLearner()
    buffer.advance(56)
    plugins = [MetricAggregation(), WeightSync(), Staleness(), LogAfterCollect(sinks=[sink])]
    ports = fake_ports(buffer=buffer, learner=learner)
    with pytest.raises(RunError, match="S=-55"):
        Trainer(plugins, ports, TrainerConfig(total_steps=3, train_batch_size=1, ppo_mini_batch_size=1)).fit()
    assert (learner.updates, sink.rows) == (0, [])
