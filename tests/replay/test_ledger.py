"""The ledger balances under any interleaving and strategy, and a changed stamp unbalances it."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from hooktrainer.errors import LedgerError, RolloutError
from hooktrainer.ports import STRATEGIES, FailureReason, Group, Replacement, Strategy, Trajectory
from hooktrainer.replay.buffer import GroupBuffer
from hooktrainer.replay.dispatcher import Dispatcher
from hooktrainer.replay.ledger import Ledger
from hooktrainer.replay.options import ReplayOptions
from hooktrainer.replay.staleness import Drop
from hooktrainer.testing import FakePrompts

PER_STEP, MINI = 4, 2


def answers(length: int) -> list[Trajectory]:
    tokens = np.zeros(length, np.int64)
    return [Trajectory(tokens=tokens, logprobs=np.zeros(length, np.float32), score=1.0, versions=tokens)] * 2


class Interleavings(RuleBasedStateMachine):
    """Dispatch, claim, finish, fail, sync and sample in any order."""

    @initialize(
        name=st.sampled_from(sorted(STRATEGIES)),
        threshold=st.integers(1, 3),
        in_order=st.booleans(),
        capacity=st.sampled_from([None, 4, 7]),
        when_full=st.sampled_from(["block", "evict"]),
    )
    def start(self, name: str, threshold: int, in_order: bool, capacity: int | None, when_full: str) -> None:
        limits = ReplayOptions(capacity=capacity, when_full=when_full, max_failed_groups=10**6, max_lost_groups=10**6)
        self.strategy: Strategy = STRATEGIES.resolve(name)(threshold, in_order)
        self.buffer = GroupBuffer(limits, strict=True)
        self.buffer.set_policy(self.strategy)
        self.prompts = FakePrompts()
        self.dispatcher = Dispatcher(self.prompts, self.buffer, groups_per_step=PER_STEP)
        self.step = 1
        self.running: list[Group] = []
        self.trained: list[int] = []

    @rule(groups=st.integers(0, 3))
    def dispatch(self, groups: int) -> None:
        self.dispatcher.request(groups)

    @rule(limit=st.integers(1, 3))
    def claim(self, limit: int) -> None:
        self.running += self.buffer.claim(limit, block=False)

    @precondition(lambda self: self.running)
    @rule(place=st.integers(0, 10), length=st.integers(1, 5))
    def finish(self, place: int, length: int) -> None:
        self.buffer.finish(self.running.pop(place % len(self.running)), answers(length))

    @precondition(lambda self: self.running)
    @rule(place=st.integers(0, 10), reason=st.sampled_from(["error", "cancelled", "timeout", "worker_died"]))
    def fail(self, place: int, reason: FailureReason) -> None:
        self.buffer.fail(self.running.pop(place % len(self.running)), ValueError("boom"), reason)

    @rule()
    def sync(self) -> None:
        self.buffer.advance(self.step)
        self.step += 1

    @rule(instant=st.booleans())
    def sample(self, instant: bool) -> None:
        """Sample as the loop does, with an engine that generates all pending groups before the loop would block."""

        def refill(lost: Sequence[Replacement]) -> None:
            self.dispatcher.replace(lost)
            self.dispatcher.request(0 if instant else MINI)
            while groups := self.buffer.claim(9, block=False):
                self.running += groups
            while self.running:
                self.buffer.finish(self.running.pop(), answers(2))

        batch = self.buffer.sample(MINI, self.step, refill)
        staleness = [group.staleness(self.step) for group in batch.groups]
        assert all(s >= 1 for s in staleness)
        assert not any(self.strategy.evicts(s) for s in staleness)
        assert [group.number for group in batch.groups] == sorted(group.number for group in batch.groups)
        self.trained += [group.number for group in batch.groups]

    @invariant()
    def the_books_balance(self) -> None:
        if not hasattr(self, "buffer"):
            return
        ledger = self.buffer.ledger
        counts = {key: metric.value for key, metric in self.buffer.take_metrics().items()}
        in_buffer = sum(counts[f"replay/{state}"] for state in ("pending", "running", "finished"))
        assert ledger.imbalance == 0
        assert ledger.outstanding == in_buffer
        assert counts["replay/running"] == len(self.running)
        assert len(set(self.trained)) == len(self.trained) == ledger.sampled.groups
        assert ledger.sampled.trajectories == 2 * ledger.sampled.groups
        assert ledger.finished.groups >= ledger.sampled.groups

    @invariant()
    def pace_never_dispatches_more_than_its_budget(self) -> None:
        if (
            hasattr(self, "buffer")
            and self.strategy.budget(version=0, trained=0, outstanding=0, per_step=1) is not None
        ):
            ledger = self.buffer.ledger
            assert (
                ledger.sampled.groups + ledger.outstanding <= (self.strategy.threshold + self.buffer.version) * PER_STEP
            )


Interleavings.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestInterleavings = Interleavings.TestCase


def group(number: int, stamp: int, *lengths: int) -> Group:
    (prompt,) = FakePrompts().take(1)
    trajectories = tuple(answers(length)[0] for length in lengths)
    return Group(number=number, stamp=stamp, prompt=prompt, trajectories=trajectories)


class TestBooks:
    def test_ages_by_dispatch_step_equal_ages_by_version_moves(self) -> None:
        ledger = Ledger()
        ledger.open(group(0, 1))
        ledger.open(group(1, 1))
        ledger.move(1)
        ledger.sample(group(0, 1, 3))
        ledger.open(group(2, 2))
        ledger.move(2)
        ledger.drop(group(1, 1), "stale")

        assert (ledger.outstanding, ledger.imbalance) == (1, 0)

    def test_changed_dispatch_step_unbalances_the_ledger(self) -> None:
        ledger = Ledger()
        ledger.open(group(0, 1))
        ledger.move(1)
        ledger.sample(group(0, 2, 3))

        assert ledger.imbalance == -1

    def test_ledger_counts_groups_trajectories_and_tokens(self) -> None:
        ledger = Ledger()
        for number, lengths in enumerate([(2, 4), (1, 1), (7, 9)]):
            ledger.open(group(number, 1))
            ledger.finish(group(number, 1, *lengths))
        ledger.sample(group(0, 1, 2, 4))
        ledger.sample(group(1, 1, 1, 1))
        ledger.drop(group(2, 1, 7, 9), "stale")

        totals = {key: metric.value for key, metric in ledger.metrics().items()}
        assert [totals[f"ledger/{unit}/trained"] for unit in ("groups", "trajectories", "tokens")] == [2, 4, 8]
        assert [totals[f"ledger/{unit}/dropped/stale"] for unit in ("groups", "trajectories", "tokens")] == [1, 2, 16]
        assert totals["ledger/groups/dispatched"] == 3
        assert totals["training/off_policy/length_bias"] == pytest.approx((8 / 4) / (24 / 6))

    def test_strict_buffer_raises_an_imbalance_at_the_next_version(self) -> None:
        buffer = GroupBuffer(strict=True)
        buffer.dispatch(FakePrompts().take(1))
        (claimed,) = buffer.claim(1)
        buffer.advance(1)
        buffer.finish(attrs.evolve(claimed, stamp=2), answers(1))
        buffer.sample(1, 2, lambda _: None)

        with pytest.raises(LedgerError, match="at version 2 the ledger is off by -1"):
            buffer.advance(2)

    def test_buffer_that_is_not_strict_reports_an_imbalance_as_metric(self) -> None:
        buffer = GroupBuffer()
        buffer.dispatch(FakePrompts().take(1))
        (claimed,) = buffer.claim(1)
        buffer.advance(1)
        buffer.finish(attrs.evolve(claimed, stamp=2), answers(1))
        buffer.sample(1, 2, lambda _: None)
        buffer.advance(2)

        assert buffer.take_metrics()["ledger/imbalance"].value == -1


def test_drop_tolerates_failures_up_to_the_limit_and_then_raises_the_first_error() -> None:
    buffer = GroupBuffer(ReplayOptions(max_failed_groups=1))
    buffer.set_policy(Drop(1))
    dispatcher = Dispatcher(FakePrompts(), buffer, groups_per_step=1)
    dispatcher.request(1)
    errors = [ValueError("first"), ValueError("second")]

    def refill(lost: Sequence[Replacement]) -> None:
        dispatcher.replace(lost)
        for claimed in buffer.claim(9, block=False):
            buffer.fail(claimed, errors.pop(0))

    with pytest.raises(RolloutError, match=r"max_failed_groups = 1 is exceeded: \w+Error: ") as caught:
        buffer.sample(1, 1, refill)

    assert str(caught.value.__cause__) == "second"
