"""Measure the cost of a sample with a thousand and a million groups in the buffer: calls and milliseconds.

python tests/benchmarks/replay_cost.py
"""

from __future__ import annotations

import statistics
import sys
from time import perf_counter

import numpy as np

from hooktrainer.ports import Example, Prompt, Trajectory
from hooktrainer.replay.buffer import GroupBuffer
from hooktrainer.replay.dispatcher import Dispatcher
from hooktrainer.replay.staleness import Drop
from hooktrainer.testing import FakePrompts

BATCH, STALE, ROUNDS = 32, 32, 7
PROMPT = Prompt(Example("0"), np.array([0]))
ANSWER = Trajectory(
    tokens=np.zeros(1, np.int64), logprobs=np.zeros(1, np.float32), score=1.0, versions=np.zeros(1, np.int64)
)


def filled(groups: int) -> GroupBuffer:
    """Return a buffer in which each step finds 32 stale groups and trains 32 fresh ones."""
    buffer = GroupBuffer()
    buffer.set_policy(Drop(ROUNDS + 1))
    for version in range(ROUNDS + 1):
        buffer.advance(version)
        buffer.dispatch([PROMPT] * (STALE + BATCH if version < ROUNDS else groups))
    for group in buffer.claim(groups + ROUNDS * (STALE + BATCH)):
        buffer.finish(group, [ANSWER])
    return buffer


def cycle(buffer: GroupBuffer, step: int) -> tuple[int, float]:
    """Sample a batch, evict stale groups and refill the buffer; return the calls and seconds of one cycle."""
    dispatcher = Dispatcher(FakePrompts(), buffer, groups_per_step=BATCH)
    calls = 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    started = perf_counter()
    if step % 2:
        sys.setprofile(count)
    batch = buffer.sample(BATCH, step, dispatcher.replace)
    sys.setprofile(None)
    seconds = perf_counter() - started
    assert len(batch.groups) == BATCH
    for group in buffer.claim(STALE, block=False):
        buffer.finish(group, [ANSWER])
    return calls, seconds


def main() -> None:
    """Print the results for both sizes."""
    for groups in (1_000, 1_000_000):
        buffer = filled(groups)
        cycle(buffer, ROUNDS + 2)
        rounds = [(step, *cycle(buffer, step)) for step in range(ROUNDS + 3, 2 * ROUNDS + 1)]
        calls = {counted for step, counted, _ in rounds if step % 2}
        milliseconds = [seconds * 1e3 for step, _, seconds in rounds if not step % 2]
        print(f"{groups:>9,} groups: {sorted(calls)} calls, {statistics.median(milliseconds):.2f} ms (median)")


if __name__ == "__main__":
    main()
