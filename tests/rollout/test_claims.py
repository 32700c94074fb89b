"""Engines claim groups that they can start, and `replay.group_timeout_s` counts from the start of generation."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path

import attrs

from helpers.faulty_tasks import WaitsInScore
from helpers.rollouts import LENGTH, PATIENCE_S, TOKENIZER, build, groups, publish
from hooktrainer.ports import Group
from hooktrainer.replay.buffer import GroupBuffer
from hooktrainer.replay.options import ReplayOptions
from hooktrainer.rollout.process.engine import ProcessOptions
from hooktrainer.rollout.thread import FairSource, ThreadOptions
from hooktrainer.tasks.addition import Addition
from hooktrainer.testing import ManualClock


class WatchedBuffer(GroupBuffer):
    """A buffer with a timeout of ten seconds on a clock that the test moves."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.changed = threading.Condition()
        self.claimed: list[int] = []
        self.begun: list[int] = []
        super().__init__(ReplayOptions(group_timeout_s=10.0, max_lost_groups=100), clock=self.clock)

    def claim(self, limit: int, block: bool = True, *, begin: bool = True) -> Sequence[Group]:
        claimed = super().claim(limit, block, begin=begin)
        with self.changed:
            self.claimed += [group.number for group in claimed]
            self.changed.notify_all()
        return claimed

    def begin(self, groups: Sequence[Group]) -> None:
        super().begin(groups)
        with self.changed:
            self.begun += [group.number for group in groups]
            self.changed.notify_all()

    def wait_until(self, names: str, count: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: len(getattr(self, names)) >= count, PATIENCE_S), (names, count)

    def timed_out(self) -> int:
        with self.frozen():
            self._fail_timed_out()
        metric = self.take_metrics().get("replay/failed/timeout")
        return 0 if metric is None else int(metric.value)


def filled(count: int) -> WatchedBuffer:
    buffer = WatchedBuffer()
    buffer.dispatch([group.prompt for group in groups(count)], 1)
    return buffer


class TestBuffer:
    def test_claimed_group_does_not_time_out_before_it_begins(self) -> None:
        buffer = filled(3)
        claimed = buffer.claim(3, begin=False)
        buffer.clock.advance(11)
        assert buffer.timed_out() == 0
        buffer.begin(claimed[1:])
        buffer.clock.advance(9)
        buffer.begin(claimed)  # groups that have begun keep their start time
        buffer.clock.advance(1)
        assert buffer.timed_out() == 2
        buffer.clock.advance(9)
        assert buffer.timed_out() == 3

    def test_timeout_starts_at_the_claim_by_default(self) -> None:
        buffer = filled(1)
        buffer.claim(1)
        buffer.clock.advance(10)
        assert buffer.timed_out() == 1

    def test_begin_has_no_effect_on_groups_that_timed_out_or_failed(self) -> None:
        buffer = filled(2)
        first, second = buffer.claim(2)
        buffer.fail(second, ValueError("boom"), "cancelled")
        buffer.clock.advance(10)
        assert buffer.timed_out() == 1
        buffer.begin([first, second])
        buffer.clock.advance(10)
        assert buffer.timed_out() == 1


@attrs.frozen(kw_only=True)
class Waiting(Addition):
    """A task whose `score` blocks until the test releases it."""

    entered: threading.Semaphore = attrs.field(factory=lambda: threading.Semaphore(0))
    released: threading.Semaphore = attrs.field(factory=lambda: threading.Semaphore(0))

    def score(self, truth: str, answer: str) -> float:
        self.entered.release()
        self.released.acquire()
        return 1.0


def test_threads_claim_no_groups_for_workers_without_free_slots() -> None:
    """Both workers block in `score`. The one that is released claims one group for itself, and none for the other."""
    task, buffer = Waiting(), filled(6)
    engine = ThreadOptions(n=1, max_response_length=LENGTH, workers=2, slots=1).build(
        policy=build, tokenizer=TOKENIZER, task=task, seed=0
    )
    publish(engine, 0)
    engine.start(buffer)
    try:
        for _ in range(2):
            assert task.entered.acquire(timeout=PATIENCE_S)
        buffer.clock.advance(5)
        task.released.release()
        assert task.entered.acquire(timeout=PATIENCE_S)
        assert sorted(buffer.begun) == sorted(buffer.claimed) == [0, 1, 2]
        buffer.clock.advance(6)
        assert buffer.timed_out() == 1
    finally:
        for _ in range(10):
            task.released.release()
        engine.close()


def test_the_timeout_of_a_group_sent_to_a_busy_worker_process_starts_when_the_worker_begins_it(
    tmp_path: Path,
) -> None:
    task = WaitsInScore(inside=tmp_path / "inside", proceed=tmp_path / "proceed")
    os.mkfifo(task.inside)
    os.mkfifo(task.proceed)
    engine = ProcessOptions(n=1, max_response_length=LENGTH, workers=1, slots=2).build(
        policy=build, tokenizer=TOKENIZER, task=task, seed=0
    )
    publish(engine, 0)
    buffer = filled(1)
    engine.start(buffer)
    try:
        task.inside.open().close()
        buffer.wait_until("begun", 1)  # the message may still be on its way
        buffer.dispatch([groups(1)[0].prompt], 1)
        buffer.wait_until("claimed", 2)
        buffer.clock.advance(11)
        assert buffer.timed_out() == 1  # the group that is being scored
        task.proceed.open("w").close()
        task.inside.open().close()
        buffer.wait_until("begun", 2)
        assert buffer.begun == [0, 1]
        buffer.clock.advance(9)
        assert buffer.timed_out() == 1
        buffer.clock.advance(1)
        assert buffer.timed_out() == 2
        task.proceed.open("w").close()
    finally:
        engine.close()


class TestFairSource:
    def test_idle_workers_get_even_shares(self) -> None:
        buffer, shares = filled(7), list[int]()
        source = FairSource(buffer, 2)
        other = threading.Thread(target=lambda: shares.append(len(source.claim(4, block=False))))
        mine = source.claim(4)
        other.start()
        other.join()
        assert (len(mine), shares) == (4, [3])

    def test_a_worker_without_free_slots_gets_no_share(self) -> None:
        buffer = filled(5)
        source = FairSource(buffer, 2)
        other = threading.Thread(target=lambda: source.claim(1))
        other.start()
        other.join()
        assert len(buffer.claimed) == 2  # one for each idle worker
        assert len(source.claim(1)) == 1
        assert len(source.claim(3)) == 3
        assert len(buffer.claimed) == 5
