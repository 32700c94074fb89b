"""Engines claim groups that they can start, and `replay.group_timeout_s` counts from the start of generation."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path

import attrs
import numpy as np
import pytest

from helpers.faulty_tasks import WaitsInScore
from helpers.rollouts import LENGTH, PATIENCE_S, Queue, generator_config, groups, publish
from hooktrainer.ports import Group
from hooktrainer.replay.buffer import GroupBuffer
from hooktrainer.replay.options import ReplayOptions
from hooktrainer.rollout.inline import InlineOptions
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
        super().__init__(ReplayOptions(group_timeout_s=10.0, max_lost_groups=100), clock=self.clock)

    def claim(self, limit: int, block: bool = True) -> Sequence[Group]:
        claimed = super().claim(limit, block)
        with self.changed:
            self.claimed += [group.number for group in claimed]
            self.changed.notify_all()
        return claimed

    def wait_until_claimed(self, count: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.claimed) >= count, PATIENCE_S), (self.claimed, count)

    def timed_out(self) -> int:
        with self.frozen():
            self._fail_timed_out()
        metric = self.take_metrics().get("replay/failed/timeout")
        return 0 if metric is None else int(metric.value)


def filled(count: int) -> WatchedBuffer:
    buffer = WatchedBuffer()
    buffer.dispatch([group.prompt for group in groups(count)], 1)
    return buffer


def test_begin_has_no_effect_on_groups_that_timed_out_or_failed() -> None:
    buffer = filled(3)
    buffer.claim(1)
    buffer.clock.advance(9)
    buffer.claim(1)
    buffer.clock.advance(1)
    assert buffer.timed_out() == 1
    buffer.clock.advance(9)
    assert buffer.timed_out() == 2
    buffer.clock.advance(99)
    assert buffer.timed_out() == 2


@attrs.frozen(kw_only=True)
class Waiting(Addition):
    """A task whose `score` blocks until the test releases it."""

    entered: threading.Semaphore = attrs.field(factory=lambda: threading.Semaphore(0))
    released: threading.Semaphore = attrs.field(factory=lambda: threading.Semaphore(0))

    def grade(self, truth: str, answer: str) -> float:
        self.entered.release()
        self.released.acquire()
        return 1.0


@pytest.mark.parametrize(("slots", "rewards"), [(1, 1), (1, 3), (3, 2)])
def test_threads_claim_no_groups_while_too_many_wait_for_scores(slots: int, rewards: int) -> None:
    """Rewards block. Each worker claims until as many groups as it has slots wait, beside those being scored."""
    task, buffer = Waiting(), filled(60)
    options = ThreadOptions(n=1, max_response_length=LENGTH, workers=2, slots=slots)
    engine = options.build(generator_config(task=task, workers=rewards))
    publish(engine, 0)
    engine.start(buffer)
    try:
        buffer.wait_until_claimed(2 * (slots + rewards))
        for _ in range(rewards):
            assert task.entered.acquire(timeout=PATIENCE_S)
        with buffer.frozen():
            buffer.clock.advance(11)
            claimed = len(buffer.claimed)
            assert claimed <= 2 * (2 * slots + rewards - 1)
            assert buffer.timed_out() == claimed
            assert buffer.count_pending() == 60 - claimed
    finally:
        for _ in range(200):
            task.released.release()
        engine.close()


@pytest.mark.slow
def test_no_group_is_sent_to_a_worker_process_in_which_too_many_wait_for_scores(tmp_path: Path) -> None:
    task = WaitsInScore(inside=tmp_path / "inside", proceed=tmp_path / "proceed")
    os.mkfifo(task.inside)
    os.mkfifo(task.proceed)
    options = ProcessOptions(n=1, max_response_length=LENGTH, workers=1, slots=1)
    engine = options.build(generator_config(task=task, workers=1))
    publish(engine, 0)
    buffer = filled(5)
    engine.start(buffer)
    try:
        buffer.wait_until_claimed(2)
        task.inside.open().close()
        engine.logprobs(np.arange(3))
        assert buffer.claimed in ([0, 1], [0, 1, 2])  # one is scored, one waits; none starts after both are decoded
        task.proceed.open("w").close()
        task.inside.open().close()
        buffer.wait_until_claimed(3)
        buffer.clock.advance(11)
        assert buffer.timed_out() == len(buffer.claimed) - 1
        for _ in range(3):
            task.proceed.open("w").close()
            task.inside.open().close()
        buffer.wait_until_claimed(5)
        task.proceed.open("w").close()
    finally:
        engine.close()


@pytest.mark.parametrize(
    ("kind", "batching"),
    [
        (InlineOptions, "continuous"),
        (InlineOptions, "group"),
        (ThreadOptions, "continuous"),
        (ThreadOptions, "group"),
        pytest.param(ProcessOptions, "continuous", marks=pytest.mark.slow),
    ],
)
def test_no_more_groups_are_claimed_than_there_are_slots(kind: type[ThreadOptions], batching: str) -> None:
    workers = {} if kind is InlineOptions else {"workers": 2}
    options = kind(n=1, max_response_length=LENGTH, slots=3, batching=batching, **workers)
    engine = options.build(generator_config(workers=1))
    publish(engine, 0)
    at_work: list[int] = []

    class Counted(Queue):
        def claim(self, limit: int, block: bool = True) -> Sequence[Group]:
            with self.changed:
                claimed = super().claim(limit, block)
                at_work.append(len(self.claimed) - len(self.finished))
            return claimed

    queue = Counted(groups(40))
    engine.start(queue)
    try:
        engine.pump()
        queue.wait_for(40)
    finally:
        engine.close()
    per_worker = 1 if batching == "group" else 3
    if kind is not InlineOptions:  # as many may wait for scores, beside the one that is scored
        per_worker = 2 * per_worker + 1
    assert 0 < max(at_work) <= workers.get("workers", 1) * per_worker


@pytest.mark.parametrize("kind", [ThreadOptions, pytest.param(ProcessOptions, marks=pytest.mark.slow)])
def test_no_group_is_claimed_while_a_sync_pauses_an_idle_engine(kind: type[ThreadOptions], tmp_path: Path) -> None:
    task = WaitsInScore(inside=tmp_path / "inside", proceed=tmp_path / "proceed")
    os.mkfifo(task.inside)
    os.mkfifo(task.proceed)
    options = kind(n=1, max_response_length=LENGTH, workers=1, slots=1)
    engine = options.build(generator_config(task=task, workers=1))
    publish(engine, 0)
    queue = Queue(groups(3))
    engine.start(queue)
    try:
        task.inside.open().close()
        queue.wait_until(lambda: len(queue.claimed) == 2)  # the third waits until a group is scored
        engine.pause()
        task.proceed.open("w").close()
        queue.wait_for(1)
        engine.logprobs(np.arange(3))
        assert queue.claimed == [0, 1]
        engine.resume()
        queue.wait_until(lambda: len(queue.claimed) == 3)
        for _ in range(2):
            task.inside.open().close()
            task.proceed.open("w").close()
    finally:
        engine.close()


class TestFairSource:
    def test_idle_workers_get_even_shares(self) -> None:
        buffer, shares = filled(7), list[int]()
        source = FairSource(buffer, 2)
        other = threading.Thread(target=lambda: shares.append(len(source.claim(4, block=False))))
        mine = source.claim(4)
        assert len(buffer.claimed) == len(mine) == 4
        other.start()
        other.join()
        assert shares == [3]

    def test_a_worker_with_fewer_free_slots_gets_a_smaller_share(self) -> None:
        buffer = filled(1)
        source = FairSource(buffer, 2)
        other = threading.Thread(target=lambda: source.claim(3))
        other.start()
        other.join()
        buffer.dispatch([group.prompt for group in groups(9)], 1)
        assert len(source.claim(9)) == 8  # one is left for the other worker: each has one free slot then
