"""The replay buffer: groups move as a whole, oldest first, and nobody waits in vain."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hooktrainer.dispatch import Dispatcher
from hooktrainer.errors import RolloutError, StarvedError
from hooktrainer.groups import Group, Prompt, Trajectory
from hooktrainer.replay import GroupBuffer
from hooktrainer.testing import FakeEngine, FakePrompts
from hooktrainer_plugins.staleness import Drop, Wait


def prompts(count: int) -> list[Prompt]:
    return [Prompt(str(number), np.array([number])) for number in range(count)]


def answer() -> Trajectory:
    return Trajectory(tokens=np.zeros(1, np.int64), logprobs=np.zeros(1, np.float32), score=1.0, versions=np.zeros(1, np.int64))


def nothing_more(_: int) -> None: ...


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
    def test_drop_keeps_what_is_at_the_threshold_and_evicts_what_is_above(self) -> None:
        buffer = GroupBuffer()
        buffer.set_policy(Drop(2))
        finished(buffer, [3, 4, 5])

        batch = buffer.sample(2, 5, nothing_more)

        assert [group.staleness(5) for group in batch.groups] == [2, 1]
        assert batch.evicted == (3,)

    def test_time_in_the_queue_ages_the_data(self) -> None:
        buffer = GroupBuffer()
        buffer.set_policy(Drop(2))
        finished(buffer, [3])

        assert buffer.sample(1, 6, nothing_more).evicted == (4,)

    def test_stale_groups_are_evicted_before_it_is_counted_what_is_there_and_each_is_replaced_once(self) -> None:
        buffer = GroupBuffer()
        buffer.set_policy(Drop(1))
        finished(buffer, [1, 1, 1, 1])
        buffer.advance(4)
        asked: list[int] = []

        def refill(lost: int) -> None:
            asked.append(lost)
            finished(buffer, [5] * lost)

        batch = buffer.sample(2, 5, refill)

        assert sum(asked) == 4
        assert batch.evicted == (5, 5, 5, 5)
        assert stamps_of(batch.groups) == [5, 5]
        assert len({group.number for group in batch.groups}) == 2

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

    def test_wait_takes_what_is_there_below_the_threshold_and_drops_nothing(self) -> None:
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

    def test_a_batch_is_short_only_when_nothing_more_can_come(self) -> None:
        buffer = GroupBuffer()
        finished(buffer, [1])

        assert len(buffer.sample(4, 1, nothing_more).groups) == 1
        assert buffer.sample(4, 1, nothing_more).groups == ()

    def test_sampling_waits_for_what_is_running(self) -> None:
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

    def test_waiting_longer_than_allowed_says_what_it_waited_for(self) -> None:
        buffer = GroupBuffer(timeout_s=0.01)
        buffer.set_policy(Drop(1))
        buffer.dispatch(prompts(1))
        buffer.claim(1)
        finished(buffer, [2])

        with pytest.raises(StarvedError) as caught:
            buffer.sample(1, 3, nothing_more)

        text = str(caught.value)
        assert "0 of 1 groups sampleable in step 3, 1 evicted, smallest S=2, policy Drop(threshold=1)" in text
        assert "1 running and 0 pending, the oldest with S=3" in text

    def test_a_rollout_that_is_always_too_old_does_not_spin_for_ever(self) -> None:
        buffer = GroupBuffer(timeout_s=0.01)
        buffer.set_policy(Drop(1))

        with pytest.raises(
            StarvedError, match=r"starved for 0.01 s: 0 of 1 .* evicted, smallest S=2, policy Drop\(threshold=1\)"
        ):
            buffer.sample(1, 2, lambda lost: finished(buffer, [1]))

    def test_closing_wakes_everyone(self) -> None:
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
    def test_a_failed_group_leaves_the_next_sample_with_its_cause(self) -> None:
        buffer, error = GroupBuffer(), ValueError("boom")
        buffer.dispatch(prompts(2))
        first, second = buffer.claim(2)
        buffer.fail(first, error)
        buffer.fail(second, KeyError("later"))

        with pytest.raises(RolloutError, match="group 0 .* could not be generated") as caught:
            buffer.sample(1, 1, nothing_more)

        assert caught.value.__cause__ is error

    def test_a_group_without_an_answer_is_a_failure(self) -> None:
        buffer = GroupBuffer()
        buffer.dispatch(prompts(1))
        (group,) = buffer.claim(1)
        buffer.finish(group, [])

        with pytest.raises(RolloutError) as caught:
            buffer.sample(1, 1, nothing_more)

        assert "without an answer" in str(caught.value.__cause__)

    def test_a_group_is_handed_in_once(self) -> None:
        buffer = GroupBuffer()
        buffer.dispatch(prompts(1))
        (group,) = buffer.claim(1)
        buffer.finish(group, [answer()])

        with pytest.raises(ValueError, match="group 0 is not running"):
            buffer.finish(group, [answer()])
        with pytest.raises(ValueError, match="group 0 is not running"):
            buffer.fail(group, ValueError())

    def test_the_version_does_not_go_backwards(self) -> None:
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

        assert counts == {"replay/pending": 3, "replay/running": 1, "replay/finished": 2}

    @pytest.mark.parametrize("state", ["pending", "running", "finished"])
    def test_what_could_be_trained_next_is_known_in_every_state(self, state: str) -> None:
        buffer = GroupBuffer()
        buffer.set_policy(Drop(2))
        assert not buffer.trainable(1)
        buffer.dispatch(prompts(1))
        groups = buffer.claim(1) if state != "pending" else ()
        if state == "finished":
            buffer.finish(groups[0], [answer()])

        assert [buffer.trainable(step) for step in (1, 2, 3)] == [True, True, False]


class TestDispatch:
    def test_what_exceeds_the_capacity_is_owed(self) -> None:
        buffer = GroupBuffer(capacity=3)
        dispatcher = Dispatcher(FakePrompts(), buffer)

        dispatcher.request(5)
        assert (len(buffer.claim(9)), buffer.room()) == (3, 0)
        with pytest.raises(ValueError, match="1 groups were dispatched into a buffer with room for 0"):
            buffer.dispatch(prompts(1))

        dispatcher.request(0)
        assert buffer.claim(9, block=False) == []

    def test_room_that_comes_back_is_used_for_what_is_owed(self) -> None:
        buffer = GroupBuffer(capacity=2)
        dispatcher = Dispatcher(FakePrompts(), buffer)
        engine = FakeEngine()
        engine.start(buffer)
        dispatcher.request(6)
        seen: list[int] = []

        for _ in range(3):
            batch = buffer.sample(2, 1, lambda lost: [dispatcher.request(lost), engine.pump()])
            seen += [group.number for group in batch.groups]

        assert seen == list(range(6))

    def test_nothing_is_owed_once_the_data_has_ended(self) -> None:
        buffer = GroupBuffer()
        dispatcher = Dispatcher(FakePrompts(3), buffer)

        dispatcher.request(5)

        assert dispatcher.exhausted
        assert len(buffer.claim(9)) == 3


@attrs.define
class Counting:
    """Counts what producers and the consumer saw."""

    trained: list[int] = attrs.field(factory=list)
    broken: int = 0


def test_producers_and_the_consumer_never_see_a_half_written_group() -> None:
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
