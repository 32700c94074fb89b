"""The replay buffer: states of groups, sampling oldest first, and waits that end."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from concurrent.futures import CancelledError

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hooktrainer.errors import RolloutError, StarvedError
from hooktrainer.ports import Example, Group, Prompt, Replacement, Trajectory
from hooktrainer.replay.buffer import GroupBuffer
from hooktrainer.replay.dispatcher import Dispatcher
from hooktrainer.replay.options import ReplayOptions
from hooktrainer.replay.staleness import Drop, Pace, Requeue, Wait
from hooktrainer.replay.statistics import REMEMBERED_PROMPTS, ReplayStatistics
from hooktrainer.testing import FakeEngine, FakePrompts, ManualClock

SMALL = ("version", "next_number", "groups_per_step", "planned_before")
"""Parts of a state that are plain numbers."""


def prompts(count: int) -> list[Prompt]:
    return [Prompt(Example(str(number)), np.array([number])) for number in range(count)]


def answer() -> Trajectory:
    return Trajectory(
        tokens=np.zeros(1, np.int64), logprobs=np.zeros(1, np.float32), score=1.0, versions=np.zeros(1, np.int64)
    )


def nothing_more(_: Sequence[Replacement]) -> None: ...


def finished(buffer: GroupBuffer, stamps: Sequence[int]) -> None:
    """Put one finished group of each stamp into the buffer; stamps ascend."""
    for stamp in stamps:
        buffer.advance(stamp - 1)
        buffer.dispatch(prompts(1))
        (group,) = buffer.claim(1)
        buffer.finish(group, [answer()])


def stamps_of(groups: Sequence[Group]) -> list[int]:
    return [group.stamp for group in groups]


class TestStaleness:
    def test_drop_keeps_groups_at_the_threshold_and_evicts_those_above(self) -> None:
        buffer = GroupBuffer()
        buffer.set_policy(Drop(2))
        finished(buffer, [3, 4, 5])

        batch = buffer.sample(2, 5, nothing_more)

        assert [group.staleness(5) for group in batch.groups] == [2, 1]
        assert batch.evicted == (3,)

    def test_staleness_includes_time_in_the_queue(self) -> None:
        buffer = GroupBuffer()
        buffer.set_policy(Drop(2))
        finished(buffer, [3])

        assert buffer.sample(1, 6, nothing_more).evicted == (4,)

    def test_stale_groups_are_evicted_before_finished_groups_are_counted_and_replaced_once(self) -> None:
        buffer = GroupBuffer()
        buffer.set_policy(Drop(1))
        finished(buffer, [1, 1, 1, 1])
        buffer.advance(4)
        asked: list[int] = []

        def refill(lost: Sequence[Replacement]) -> None:
            asked.append(len(lost))
            finished(buffer, [5] * len(lost))

        batch = buffer.sample(2, 5, refill)

        assert sum(asked) == 4
        assert batch.evicted == (5, 5, 5, 5)
        assert stamps_of(batch.groups) == [5, 5]
        assert len({group.number for group in batch.groups}) == 2

    def test_a_running_group_is_evicted_only_once_it_is_finished_and_as_a_whole(self) -> None:
        buffer = GroupBuffer()
        buffer.set_policy(Drop(2))
        buffer.dispatch(prompts(1))
        (slow,) = buffer.claim(1)
        finished(buffer, [4])

        assert buffer.sample(1, 4, nothing_more).evicted == ()
        buffer.finish(slow, [answer()] * 4)
        assert buffer.sample(1, 4, nothing_more).evicted == (4,)
        assert (buffer.ledger.dropped["stale"].trajectories, buffer.ledger.outstanding) == (4, 0)

    def test_wait_blocks_while_an_unfinished_group_reaches_the_threshold(self) -> None:
        buffer = GroupBuffer()
        buffer.set_policy(Wait(2))
        buffer.advance(1)
        buffer.dispatch(prompts(1))
        (slow,) = buffer.claim(1)
        finished(buffer, [3])
        taken: list[list[int]] = []
        thread = threading.Thread(target=lambda: taken.append(stamps_of(buffer.sample(1, 3, nothing_more).groups)))
        thread.start()

        buffer.finish(slow, [answer()])
        thread.join()

        assert taken == [[2]]

    def test_wait_samples_groups_below_the_threshold_and_drops_nothing(self) -> None:
        buffer = GroupBuffer()
        buffer.set_policy(Wait(2))
        finished(buffer, [1, 1])
        buffer.advance(8)
        buffer.dispatch(prompts(1))

        assert buffer.sample(2, 9, nothing_more).evicted == ()


class TestSampling:
    @given(st.permutations(range(6)), st.integers(1, 6))
    def test_groups_are_taken_in_the_order_of_dispatch_not_of_completion(self, order: list[int], size: int) -> None:
        buffer = GroupBuffer()
        buffer.dispatch(prompts(6))
        groups = buffer.claim(6)
        for place in order:
            buffer.finish(groups[place], [answer()])

        batch = buffer.sample(size, 1, nothing_more)

        assert [group.number for group in batch.groups] == list(range(size))

    def test_batch_is_short_only_at_the_end_of_the_data(self) -> None:
        buffer = GroupBuffer()
        finished(buffer, [1])

        assert len(buffer.sample(4, 1, nothing_more).groups) == 1
        assert buffer.sample(4, 1, nothing_more).groups == ()

    def test_sampling_waits_for_running_groups(self) -> None:
        buffer = GroupBuffer()
        buffer.dispatch(prompts(2))
        claimed = buffer.claim(2)
        sizes: list[int] = []
        thread = threading.Thread(target=lambda: sizes.append(len(buffer.sample(2, 1, nothing_more).groups)))
        thread.start()
        for group in claimed:
            buffer.finish(group, [answer()])
        thread.join()

        assert sizes == [2]

    def test_a_sample_timeout_names_the_missing_groups(self) -> None:
        buffer = GroupBuffer(ReplayOptions(sample_timeout_s=0.01))
        buffer.set_policy(Drop(1))
        buffer.dispatch(prompts(1))
        buffer.claim(1)
        finished(buffer, [2])

        with pytest.raises(StarvedError) as caught:
            buffer.sample(1, 3, nothing_more)

        text = str(caught.value)
        assert (
            "0 of 1 groups sampleable in step 3, 1 evicted, smallest S=2, strategy Drop(threshold=1, in_order=False)"
            in text
        )
        assert "1 running, 0 pending, the oldest with S=3" in text

    def test_groups_that_are_always_stale_end_in_a_sample_timeout(self) -> None:
        buffer = GroupBuffer(ReplayOptions(sample_timeout_s=0.01))
        buffer.set_policy(Drop(1))

        with pytest.raises(
            StarvedError,
            match=r"starved for 0.01 s: 0 of 1 .* evicted, smallest S=2, strategy Drop\(threshold=1, in_order=False\)",
        ):
            buffer.sample(1, 2, lambda lost: finished(buffer, [1]))

    def test_close_wakes_all_waiting_threads(self) -> None:
        buffer = GroupBuffer()
        buffer.dispatch(prompts(1))
        buffer.claim(1)
        ended: list[object] = []

        def sample() -> None:
            try:
                buffer.sample(1, 1, nothing_more)
            except RolloutError as error:
                ended.append(str(error))

        threads = [threading.Thread(target=sample), threading.Thread(target=lambda: ended.append(buffer.claim(1)))]
        for thread in threads:
            thread.start()
        buffer.close()
        for thread in threads:
            thread.join()

        assert sorted(map(str, ended)) == ["()", "the replay buffer was closed while the loop was sampling"]


class TestStates:
    def test_failed_group_raises_in_the_next_sample_with_its_cause(self) -> None:
        buffer, error = GroupBuffer(), ValueError("boom")
        buffer.dispatch(prompts(2))
        first, second = buffer.claim(2)
        buffer.fail(first, error)
        buffer.fail(second, KeyError("later"))

        with pytest.raises(
            RolloutError, match=r"group 0 .* could not be generated \(error\), and .*max_failed_groups = 0"
        ) as caught:
            buffer.sample(1, 1, nothing_more)

        assert caught.value.__cause__ is error

    @pytest.mark.parametrize("handed_in", [None, []])
    def test_a_group_without_an_answer_is_a_failure(self, handed_in: list[Trajectory] | None) -> None:
        buffer = GroupBuffer()
        buffer.dispatch(prompts(1))
        (group,) = buffer.claim(1)
        buffer.finish(group, handed_in)

        with pytest.raises(RolloutError) as caught:
            buffer.sample(1, 1, nothing_more)

        assert f"handed in {handed_in!r} instead of answers" in str(caught.value.__cause__)

    def test_finishing_a_group_twice_is_an_error(self) -> None:
        buffer = GroupBuffer()
        buffer.dispatch(prompts(1))
        (group,) = buffer.claim(1)
        buffer.finish(group, [answer()])

        with pytest.raises(ValueError, match="group 0 is not running"):
            buffer.finish(group, [answer()])
        with pytest.raises(ValueError, match="group 0 is not running"):
            buffer.fail(group, ValueError())

    def test_error_of_a_filter_is_raised_by_sample_and_other_groups_finish(self) -> None:
        def judge(group: Group) -> bool:
            raise ZeroDivisionError(f"no filter for {group.number}")

        buffer = GroupBuffer(ReplayOptions(max_failed_groups=9))
        buffer.set_filter(judge)
        buffer.dispatch(prompts(2))
        first, second = buffer.claim(2)
        buffer.finish(first, [answer()])

        for _ in range(2):
            with pytest.raises(ZeroDivisionError, match="no filter for 0") as caught:
                buffer.sample(1, 1, nothing_more)
        assert any(entry.name == "judge" for entry in caught.traceback)
        assert caught.value.__notes__ == ["raised by the replay filter for group 0 ('0')"]

        buffer.finish(second, [answer()])
        assert buffer.take_metrics()["replay/running"].value == 0
        assert (buffer.ledger.dropped["failed"].groups, buffer.ledger.imbalance) == (2, 0)

    def test_group_finished_with_invalid_answers_stays_running_until_it_is_failed(self) -> None:
        buffer = GroupBuffer()
        buffer.dispatch(prompts(1))
        (group,) = buffer.claim(1)
        with pytest.raises(AttributeError):
            buffer.finish(group, [None])  # type: ignore[list-item]

        assert buffer.take_metrics()["replay/running"].value == 1
        buffer.fail(group, ValueError("no answers"))
        assert buffer.take_metrics()["replay/running"].value == 0
        assert buffer.ledger.finished.groups == 0

    def test_version_must_not_decrease(self) -> None:
        buffer = GroupBuffer()
        buffer.advance(3)

        with pytest.raises(ValueError, match="from 3 to 2"):
            buffer.advance(2)

    def test_states_are_counted(self) -> None:
        buffer = GroupBuffer()
        finished(buffer, [1, 1])
        buffer.dispatch(prompts(4))
        buffer.claim(1)

        counts = {key: metric.value for key, metric in buffer.take_metrics().items()}

        assert [counts[f"replay/{state}"] for state in ("pending", "running", "finished")] == [3, 1, 2]

    @pytest.mark.parametrize("state", ["pending", "running", "finished"])
    def test_trainable_depends_on_the_states_of_groups(self, state: str) -> None:
        buffer = GroupBuffer()
        buffer.set_policy(Drop(2))
        assert not buffer.trainable(1)
        buffer.dispatch(prompts(1))
        groups = buffer.claim(1) if state != "pending" else ()
        if state == "finished":
            buffer.finish(groups[0], [answer()])

        assert [buffer.trainable(step) for step in (1, 2, 3)] == [True, True, False]


class TestDispatch:
    def test_groups_beyond_the_capacity_are_dispatched_later(self) -> None:
        buffer = GroupBuffer(ReplayOptions(capacity=3))
        dispatcher = Dispatcher(FakePrompts(), buffer, groups_per_step=1)

        dispatcher.request(5)
        assert (len(buffer.claim(9)), buffer.may_dispatch(9, 1)) == (3, 0)
        with pytest.raises(ValueError, match="1 groups were dispatched into a buffer with room for 0"):
            buffer.dispatch(prompts(1))

        dispatcher.request(0)
        assert list(buffer.claim(9, block=False)) == []

    def test_freed_capacity_is_used_for_postponed_groups(self) -> None:
        buffer = GroupBuffer(ReplayOptions(capacity=2))
        dispatcher = Dispatcher(FakePrompts(), buffer, groups_per_step=1)
        engine = FakeEngine()
        engine.start(buffer)
        dispatcher.request(6)
        seen: list[int] = []

        for _ in range(3):
            batch = buffer.sample(2, 1, lambda lost: [dispatcher.replace(lost), engine.pump()])
            seen += [group.number for group in batch.groups]

        assert seen == list(range(6))

    def test_no_group_is_postponed_once_the_data_has_ended(self) -> None:
        buffer = GroupBuffer()
        dispatcher = Dispatcher(FakePrompts(3), buffer, groups_per_step=1)

        dispatcher.request(5)

        assert dispatcher.exhausted
        assert len(buffer.claim(9)) == 3


class TestFailures:
    def test_a_cancelled_group_is_replaced_at_once(self) -> None:
        buffer = GroupBuffer()
        dispatcher = Dispatcher(FakePrompts(), buffer, groups_per_step=1)
        dispatcher.request(1)
        (cancelled,) = buffer.claim(1)
        buffer.fail(cancelled, CancelledError(), "cancelled")

        def refill(lost: Sequence[Replacement]) -> None:
            dispatcher.replace(lost)
            for group in buffer.claim(9, block=False):
                buffer.finish(group, [answer()])

        batch = buffer.sample(1, 1, refill)

        assert [group.number for group in batch.groups] == [1]
        assert buffer.ledger.dropped["cancelled"].groups == 1

    def test_a_group_that_times_out_is_named_and_its_late_answers_are_counted(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        clock = ManualClock()
        buffer = GroupBuffer(ReplayOptions(group_timeout_s=30), clock=clock)
        dispatcher = Dispatcher(FakePrompts(), buffer, groups_per_step=1)
        dispatcher.request(1)
        (slow,) = buffer.claim(1)
        clock.advance(31)

        def refill(lost: Sequence[Replacement]) -> None:
            dispatcher.replace(lost)
            for group in buffer.claim(9, block=False):
                buffer.finish(group, [answer()])

        assert [group.number for group in buffer.sample(1, 1, refill).groups] == [1]
        buffer.finish(slow, [answer()])
        with pytest.raises(ValueError, match="group 0 is not running"):
            buffer.finish(slow, [answer()])

        assert "group 0 ('0') could not be generated (timeout) and is replaced" in caplog.text
        assert "group_timeout_s = 30" in caplog.text
        assert buffer.take_metrics()["replay/handed_in_late"].value == 1

    def test_prompt_of_a_dead_worker_is_dispatched_again_as_a_new_group(self) -> None:
        buffer = GroupBuffer()
        dispatcher = Dispatcher(FakePrompts(), buffer, groups_per_step=1)
        dispatcher.request(1)
        (lost_group,) = buffer.claim(1)
        buffer.fail(lost_group, RuntimeError("killed"), "worker_died")

        def refill(lost: Sequence[Replacement]) -> None:
            dispatcher.replace(lost)
            for group in buffer.claim(9, block=False):
                buffer.finish(group, [answer()])

        (group,) = buffer.sample(1, 1, refill).groups

        assert (group.number, group.prompt) == (1, lost_group.prompt)
        assert buffer.ledger.dispatched == 2

    def test_more_lost_groups_than_max_lost_groups_end_the_run(self) -> None:
        buffer = GroupBuffer(ReplayOptions(max_lost_groups=1))
        buffer.dispatch(prompts(2))
        for group in buffer.claim(2):
            buffer.fail(group, CancelledError(), "cancelled")

        with pytest.raises(
            RolloutError, match=r"group 1 .* \(cancelled\), and the limit replay.max_lost_groups = 1 is exceeded"
        ):
            buffer.sample(1, 1, nothing_more)


class TestReminders:
    def test_waiting_is_logged_once_a_minute_only(self, caplog: pytest.LogCaptureFixture) -> None:
        clock = ManualClock()
        buffer = Waiting(ReplayOptions(group_timeout_s=7, sample_timeout_s=200), clock)
        dispatcher = Dispatcher(FakePrompts(), buffer, groups_per_step=1)
        dispatcher.request(1)

        def refill(lost: Sequence[Replacement]) -> None:
            dispatcher.replace(lost)
            buffer.claim(9, block=False)

        with pytest.raises(StarvedError):
            buffer.sample(1, 1, refill)

        assert buffer.waits > 20
        assert caplog.text.count("still waiting") == 3


class Waiting(GroupBuffer):
    """A buffer whose waits always time out, on a manual clock."""

    def __init__(self, limits: ReplayOptions, clock: ManualClock) -> None:
        super().__init__(limits, clock=clock)
        self._manual = clock
        self.waits = 0

    def _wait(self, seconds: float) -> bool:
        self._manual.advance(seconds)
        self.waits += 1
        return False


class TestRequeue:
    def test_requeue_dispatches_the_prompt_again_with_a_new_dispatch_step(self) -> None:
        buffer = GroupBuffer()
        buffer.set_policy(Requeue(1))
        dispatcher = Dispatcher(FakePrompts(), buffer, groups_per_step=1)
        dispatcher.request(1)

        def refill(lost: Sequence[Replacement]) -> None:
            dispatcher.replace(lost)
            for group in buffer.claim(9, block=False):
                buffer.finish(group, [answer()])

        refill([])
        buffer.advance(1)
        batch = buffer.sample(1, 2, refill)

        assert [(group.number, group.stamp, group.prompt.text) for group in batch.groups] == [(1, 2, "0")]
        assert batch.evicted == (2,)

    def test_repeatedly_dropped_prompt_is_logged_once(self, caplog: pytest.LogCaptureFixture) -> None:
        buffer = GroupBuffer()
        buffer.set_policy(Drop(1))
        same = prompts(1)
        for step in range(2, 8):
            buffer.dispatch(same)
            (group,) = buffer.claim(1)
            buffer.finish(group, [answer()])
            buffer.advance(step - 1)
            buffer.sample(1, step, nothing_more)

        assert caplog.text.count("prompt '0' was dropped as stale 3 times and never trained") == 1
        assert buffer.take_metrics()["replay/dropped_repeatedly"].value == 1

    def test_drops_are_counted_for_a_limited_number_of_prompts(self) -> None:
        buffer = GroupBuffer()
        buffer.set_policy(Drop(1))
        buffer.advance(1)
        for prompt in prompts(2000):
            buffer.advance(buffer.version + 1)
            buffer.dispatch([prompt])
            buffer.finish(buffer.claim(1)[0], [answer()])
            buffer.sample(1, buffer.version + 2, nothing_more)

        assert buffer.ledger.dropped["stale"].groups == 2000
        drops = buffer.state_dict()["statistics"]["drops"]  # type: ignore[index]
        assert list(drops) == [str(number) for number in range(2000 - REMEMBERED_PROMPTS, 2000)]

    def test_dropped_prompt_is_logged_and_its_count_is_restored(self, caplog: pytest.LogCaptureFixture) -> None:
        same, others = prompts(1)[0], iter(prompts(1 + 2 * REMEMBERED_PROMPTS)[1:])
        statistics = ReplayStatistics()
        for _ in range(2):
            statistics.dropped(same)
            for _ in range(REMEMBERED_PROMPTS - 1):
                statistics.dropped(next(others))
        resumed = ReplayStatistics()
        resumed.load_state_dict(statistics.state_dict())
        resumed.dropped(same)

        assert "prompt '0' was dropped as stale 3 times" in caplog.text


class TestPace:
    def test_pace_dispatches_only_its_budget(self) -> None:
        buffer = GroupBuffer()
        buffer.set_policy(Pace(2))
        dispatcher = Dispatcher(FakePrompts(), buffer, groups_per_step=4)

        dispatcher.request(100)
        assert len(buffer.claim(99)) == 8
        dispatcher.request(100)
        assert buffer.ledger.outstanding == 8
        buffer.advance(1)
        dispatcher.request(0)
        assert buffer.ledger.outstanding == 12

    @pytest.mark.parametrize("groups_per_step", [1, 2, 4, 16])
    def test_restored_pace_budget_keeps_earlier_steps_if_the_step_size_changes(self, groups_per_step: int) -> None:
        before, after = GroupBuffer(), GroupBuffer()
        for buffer in (before, after):
            buffer.set_policy(Pace(2))
        dispatcher = Dispatcher(FakePrompts(), before, groups_per_step=4)
        for step in range(1, 21):
            dispatcher.request(0)
            for group in before.claim(99):
                before.finish(group, [answer()])
            before.sample(4, step, nothing_more)
            before.advance(step)
        after.load_state_dict(before.state_dict())
        assert after.ledger.outstanding == 4

        dispatcher = Dispatcher(FakePrompts(), after, groups_per_step=groups_per_step)
        dispatcher.request(0)
        assert after.ledger.outstanding == max(4, 2 * groups_per_step)
        assert after.may_dispatch(0, groups_per_step) == 0

    def test_may_dispatch_does_not_change_the_state(self) -> None:
        buffer = GroupBuffer()
        buffer.set_policy(Pace(2))
        dispatcher = Dispatcher(FakePrompts(), buffer, groups_per_step=4)
        dispatcher.request(0)
        buffer.advance(1)
        before = buffer.state_dict()

        for size, allowed in ((1, 0), (4, 4), (16, 28)):  # a last call with 4 would hide a change
            assert buffer.may_dispatch(0, size) == allowed
            after = buffer.state_dict()
            assert {key: before[key] for key in SMALL} == {key: after[key] for key in SMALL}

    def test_changed_step_size_applies_from_the_resume_even_if_no_group_may_be_dispatched(self) -> None:
        before, after = GroupBuffer(), GroupBuffer()
        for buffer in (before, after):
            buffer.set_policy(Pace(2))
        Dispatcher(FakePrompts(), before, groups_per_step=16).request(0)
        after.load_state_dict(before.state_dict())
        dispatcher = Dispatcher(FakePrompts(), after, groups_per_step=1)
        for version in (1, 2):
            dispatcher.request(0)
            assert after.ledger.outstanding == 32
            after.advance(version)

        assert [after.may_dispatch(0, 1), after.may_dispatch(0, 16)] == [0, 2]

    def test_dropped_group_frees_budget(self) -> None:
        buffer = GroupBuffer()
        buffer.set_policy(Pace(1))
        dispatcher = Dispatcher(FakePrompts(), buffer, groups_per_step=1)
        dispatcher.request(0)
        (lost_group,) = buffer.claim(1)
        buffer.fail(lost_group, CancelledError(), "cancelled")

        def refill(lost: Sequence[Replacement]) -> None:
            dispatcher.replace(lost)
            for group in buffer.claim(9, block=False):
                buffer.finish(group, [answer()])

        assert [group.number for group in buffer.sample(1, 1, refill).groups] == [1]

    def test_in_order_samples_wait_for_the_oldest_group(self) -> None:
        buffer = GroupBuffer()
        buffer.set_policy(Pace(1, in_order=True))
        buffer.dispatch(prompts(3))
        first, second, third = buffer.claim(3)
        buffer.finish(second, [answer()])
        buffer.finish(third, [answer()])

        def finish_the_first(_: Sequence[Replacement]) -> None:
            if buffer.take_metrics()["replay/running"].value:
                buffer.finish(first, [answer()])

        assert [group.number for group in buffer.sample(2, 1, finish_the_first).groups] == [0, 1]


class TestCapacity:
    def test_a_full_buffer_evicts_the_stalest_group_logs_it_and_replaces_it(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        # Stamps ascend along the line, so the stalest of 3, 4 and 5 is the first, wherever the others finished.
        buffer = GroupBuffer(ReplayOptions(capacity=3, when_full="evict"))
        dispatcher = Dispatcher(FakePrompts(), buffer, groups_per_step=1)
        finished(buffer, [3, 4, 5])
        buffer.advance(5)

        dispatcher.request(1)

        assert buffer.take_metrics()["replay/evicted_capacity"].value == 1
        assert "group 0, stamped 3, is evicted" in caplog.text
        assert buffer.ledger.dropped["capacity"].groups == 1
        (newest,) = buffer.claim(9)
        assert newest.stamp == 6
        assert stamps_of(buffer.sample(1, 6, nothing_more).groups) == [4]
        dispatcher.request(0)
        assert len(buffer.claim(9)) == 1

    def test_groups_that_cannot_be_evicted_block_new_ones(self) -> None:
        buffer = GroupBuffer(ReplayOptions(capacity=2, when_full="evict"))
        dispatcher = Dispatcher(FakePrompts(), buffer, groups_per_step=1)
        dispatcher.request(5)

        assert len(buffer.claim(9)) == 2


@pytest.mark.slow
def test_cost_of_a_sample_does_not_grow_with_the_number_of_groups() -> None:
    def calls_of_a_cycle(groups: int) -> int:
        buffer = GroupBuffer()
        buffer.set_policy(Drop(1))
        dispatcher = Dispatcher(FakePrompts(), buffer, groups_per_step=32)
        for group in (*_dispatched(buffer, 16), *_dispatched(buffer, groups, version=1)):
            buffer.finish(group, [answer()])
        dispatcher.request(0)
        calls = 0

        def count(*_: object) -> None:
            nonlocal calls
            calls += 1

        sys.setprofile(count)
        try:
            batch = buffer.sample(32, 2, dispatcher.replace)
        finally:
            sys.setprofile(None)
        assert (len(batch.groups), len(batch.evicted)) == (32, 16)
        return calls

    calls_of_a_cycle(100)  # warm up caches, such as those of loggers
    assert calls_of_a_cycle(1_000) == calls_of_a_cycle(100_000)


def _dispatched(buffer: GroupBuffer, count: int, version: int = 0) -> Sequence[Group]:
    buffer.advance(version)
    (prompt,) = prompts(1)
    buffer.dispatch([prompt] * count)
    return buffer.claim(count)


@attrs.define
class Counting:
    """Counts of the groups that producers and the consumer saw."""

    trained: list[int] = attrs.field(factory=list)
    broken: int = 0


def test_consumer_never_sees_a_partially_written_group() -> None:
    buffer, counting = GroupBuffer(), Counting()
    buffer.dispatch(prompts(2000))

    def produce() -> None:
        while groups := buffer.claim(7):
            for group in groups:
                value = float(group.number)
                buffer.finish(group, [attrs.evolve(answer(), score=value), attrs.evolve(answer(), score=-value)])

    producers = [threading.Thread(target=produce) for _ in range(2)]
    for producer in producers:
        producer.start()
    for _ in range(125):
        for group in buffer.sample(16, 1, nothing_more).groups:
            counting.trained.append(group.number)
            counting.broken += sum(trajectory.score for trajectory in group.trajectories) != 0
    buffer.close()
    for producer in producers:
        producer.join()

    assert counting.broken == 0
    assert len(set(counting.trained)) == len(counting.trained) == 2000
