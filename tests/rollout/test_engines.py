"""All engines: every group is answered with published weights, and no thread or process remains."""

from __future__ import annotations

import asyncio
import concurrent.futures
import itertools
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from multiprocessing import active_children
from typing import Any

import attrs
import numpy as np
import pytest
import torch

from helpers.rollouts import (
    LENGTH,
    PATIENCE_S,
    TASK,
    Queue,
    Versioned,
    build,
    discard,
    generator_config,
    groups,
    publish,
    switch,
    versions_of,
)
from helpers.serving import OwnServers
from hooktrainer import ports
from hooktrainer.errors import RolloutError, SyncError
from hooktrainer.models.policy import full_state
from hooktrainer.ports import Example, Group, Prompt, Trajectory
from hooktrainer.rollout.inline import InlineOptions
from hooktrainer.rollout.process.engine import ProcessOptions
from hooktrainer.rollout.ray.engine import RayOptions
from hooktrainer.rollout.thread import ThreadOptions
from hooktrainer.tasks.addition import Addition

BASE = {"n": 2, "max_response_length": LENGTH}
OPTIONS = {
    "inline": InlineOptions(**BASE),
    "inline by group": InlineOptions(**BASE, batching="group"),
    "thread": ThreadOptions(**BASE),
    "3 threads by group": ThreadOptions(**BASE, workers=3, batching="group"),
    "2 threads, few slots": ThreadOptions(**BASE, workers=2, slots=3, on_sync="continue"),
    "2 processes": ProcessOptions(**BASE, workers=2),
    "process by group": ProcessOptions(**BASE, workers=1, batching="group"),
    "2 servers": OwnServers(2, **BASE),
    "server by group": OwnServers(1, **BASE, batching="group", on_sync="continue"),
    "Ray by group": RayOptions(**BASE, workers=1, batching="group"),
}
SLOW = {"Ray by group", "2 processes"}
REMOTE = [ProcessOptions, RayOptions]
Make = Callable[..., Any]
NO_PROCESS = [name for name in OPTIONS if "process" not in name]


@attrs.frozen(kw_only=True)
class FailingTask(Addition):
    """A task whose `score` fails each time with another error."""

    def grade(self, truth: str, answer: str) -> float:
        raise ERRORS[truth]


ERRORS: dict[str, BaseException] = {
    "0": ArithmeticError("no score"),
    "1": asyncio.CancelledError("gone"),
    "2": concurrent.futures.CancelledError("gone"),
    "3": TimeoutError("late"),
}


def made(name: str, task: Addition = TASK) -> ports.RolloutEngine:
    return OPTIONS[name].build(generator_config(build, task, 0))


@pytest.fixture
def make() -> Iterator[Make]:
    """Return a function that builds an engine; it is closed after the test."""
    with ExitStack() as engines:

        def closing(name: str, task: Addition = TASK) -> ports.RolloutEngine:
            engine = made(name, task)
            engines.callback(engine.close)
            return engine

        yield closing


@pytest.fixture(params=[pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in OPTIONS])
def engine(request: pytest.FixtureRequest) -> Iterator[ports.RolloutEngine]:
    engine = made(request.param)
    yield engine
    engine.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("rollout")]
    assert not active_children()


def serve(engine: ports.RolloutEngine, queue: Queue, count: int) -> None:
    engine.start(queue)
    engine.pump()
    queue.wait_for(count)


def test_every_claimed_group_gets_n_answers_of_one_version(engine: ports.RolloutEngine) -> None:
    assert isinstance(engine, ports.RolloutEngine)
    queue = Queue(groups(7))
    publish(engine, 3)

    serve(engine, queue, 7)

    assert sorted(queue.finished) == list(range(7))
    assert [len(answers) for answers in queue.finished.values()] == [2] * 7
    assert {version for answers in queue.finished.values() for version in versions_of(answers)} == {3}
    metrics = engine.take_metrics()
    tokens = sum(len(answer.tokens) for answers in queue.finished.values() for answer in answers)
    assert metrics["rollout/num_tokens"].value == tokens
    assert metrics["rollout/num_trajectories"].value == 14
    assert metrics["timing_s/generate"].value > 0
    assert metrics["perf/rollout_tokens_per_worker_second"].value == pytest.approx(
        tokens / metrics["timing_s/generate"].value
    )
    assert "rollout/num_tokens" not in engine.take_metrics()


@pytest.mark.parametrize(
    "name",
    ["3 threads by group", *(pytest.param(f"{kind} by group", marks=pytest.mark.slow) for kind in ("process", "Ray"))],
)
def test_groups_decoded_one_by_one_equal_those_of_the_inline_engine(name: str) -> None:
    engines = [made("inline by group"), made(name)]
    queues = [Queue(groups(12)), Queue(groups(12))]
    for engine, queue in zip(engines, queues, strict=True):
        publish(engine, 0)
        serve(engine, queue, 12)
        engine.close()
    for number in range(12):
        for one, other in zip(*(queue.finished[number] for queue in queues), strict=True):
            np.testing.assert_array_equal(one.tokens, other.tokens)
            np.testing.assert_array_equal(one.logprobs, other.logprobs)
            assert (one.score, one.text) == (other.score, other.text)


def test_answer_decodes_greedily_with_the_published_weights(engine: ports.RolloutEngine) -> None:
    prompts = [group.prompt for group in groups(4)]
    with pytest.raises(RolloutError, match="no weights were published"):
        engine.answer(prompts)
    publish(engine, 5)
    answers = engine.answer(prompts)
    assert versions_of(answers) == {5}
    assert [answer.text for answer in answers] == [answer.text for answer in engine.answer(prompts)]
    assert engine.answer([]) == []


def test_close_may_be_called_twice_and_before_start(engine: ports.RolloutEngine) -> None:
    engine.close()
    engine.close()


def test_a_failed_stage_does_not_change_the_version_in_use(engine: ports.RolloutEngine) -> None:
    publish(engine, 1)
    prompts = [groups(1)[0].prompt]
    before = engine.answer(prompts)
    with pytest.raises(SyncError, match=r"'norm\.weight' has shape \(3,\)"):
        engine.stage({"norm.weight": torch.zeros(3)}, 2)
    with pytest.raises(SyncError, match="without staged weights"):
        switch(engine, 2)
    engine.stage({"norm.weight": torch.zeros(16)}, 2)
    with pytest.raises(SyncError, match=r"15 of 16 tensors were not staged, such as 'embedding"):
        switch(engine, 2)
    discard(engine)
    assert engine.version == 1
    np.testing.assert_array_equal(engine.answer(prompts)[0].logprobs, before[0].logprobs)


@pytest.mark.parametrize("name", ["inline", "3 threads by group", "process by group"])
def test_error_fails_only_its_group_and_is_its_reason(name: str) -> None:
    engine = made(name, FailingTask())
    publish(engine, 0)
    kinds = [
        attrs.evolve(group, prompt=Prompt(Example("1+1=", {"truth": str(group.number)}), group.prompt.tokens))
        for group in groups(4)
    ]
    queue = Queue(kinds)
    serve(engine, queue, 4)
    queue.dispatch([attrs.evolve(kinds[0], number=9)])
    engine.pump()
    queue.wait_for(5)
    engine.close()

    assert {number: reason for number, (_, reason) in queue.failed.items()} == {
        0: "error",
        1: "cancelled",
        2: "cancelled",
        3: "timeout",
        9: "error",
    }
    assert repr(queue.failed[0][0]) == "ArithmeticError('no score')"
    assert queue.finished == {}


@attrs.frozen(kw_only=True)
class SilentTask(Addition):
    """Returns early."""

    gives: object = None

    def grade(self, truth: str, answer: str) -> float:
        return self.gives  # type: ignore[return-value]


@pytest.mark.parametrize("gives", [None, "1.0"])
def test_score_that_is_not_a_number_is_an_error(gives: object, make: Make) -> None:
    engine = make("inline", SilentTask(gives=gives))
    publish(engine, 0)
    queue = Queue(groups(1))
    serve(engine, queue, 1)
    error, reason = queue.failed[0]
    assert reason == "error"
    assert f"SilentTask.score returned {gives!r}" in str(error)


ROUNDED: dict[str, tuple[object, float]] = {
    "20 parts": (sum([0.05] * 20), 1.0),
    "10 parts": (sum([0.1] * 10), 1.0),
    "6 parts": (sum([1 / 6] * 6), 1.0),
    "below 0": (-3.2e-16, 0.0),
    "above 0": (0.1 + 0.2 - 0.3, 0.0),
    "below 1 in float32": (sum([np.float32(0.1)] * 10, np.float32(0)) - np.float32(4e-7), 1.0),
    "above 1 in float32": (sum([np.float32(0.1)] * 10, np.float32(0)), 1.0),
    "partial": (0.9999, 0.9999),
    "a third": (1 / 3, 1 / 3),
}


@pytest.mark.parametrize("kind", ROUNDED)
def test_a_score_within_rounding_of_0_or_1_is_0_or_1(kind: str, make: Make) -> None:
    gives, expected = ROUNDED[kind]
    engine = make("inline", SilentTask(gives=gives))
    publish(engine, 0)
    queue = Queue(groups(1))
    serve(engine, queue, 1)
    assert queue.failed == {}
    assert {(answer.score, answer.exact) for answer in queue.finished[0]} == {(expected, expected == 1.0)}
    (greedy,) = engine.answer([groups(1)[0].prompt])
    assert greedy.score == expected


@pytest.mark.parametrize("gives", [1.001, -0.001, -7, np.float32(1.00001), 1e30])
def test_any_finite_number_is_a_score(gives: float, make: Make) -> None:
    engine = make("inline", SilentTask(gives=gives))
    publish(engine, 0)
    queue = Queue(groups(1))
    serve(engine, queue, 1)
    assert {(answer.score, answer.exact) for answer in queue.finished[0]} == {(float(gives), False)}


@pytest.mark.parametrize("gives", [math.nan, math.inf, -math.inf, np.float32("nan")])
def test_a_score_that_is_not_finite_is_an_error(gives: object, make: Make) -> None:
    engine = make("inline", SilentTask(gives=gives))
    publish(engine, 0)
    queue = Queue(groups(1))
    serve(engine, queue, 1)
    error, _ = queue.failed[0]
    assert f"SilentTask.score returned {gives!r}" in str(error)
    assert "expected a finite number" in str(error)


@pytest.mark.parametrize(("answers", "found"), [(None, "nothing"), ([], "0 answers")])
def test_wrong_number_of_generated_answers_is_an_error(answers: object, found: str, make: Make) -> None:
    engine = make("inline")
    engine._generator.trajectories = lambda *_: answers
    publish(engine, 0)
    queue = Queue(groups(1))
    serve(engine, queue, 1)
    assert str(queue.failed[0][0]).startswith(f"the engine generated {found} instead of 2 answers")


@pytest.mark.parametrize("name", ["inline", pytest.param("process by group", marks=pytest.mark.slow)])
def test_non_finite_logits_are_an_error(name: str) -> None:
    engine = made(name)
    publish(engine, 0, {key: torch.full_like(tensor, torch.nan) for key, tensor in full_state(build()).items()})
    queue = Queue(groups(2))
    serve(engine, queue, 2)
    engine.close()
    assert all("not finite" in str(error) for error, _ in queue.failed.values())


def test_interrupt_on_the_thread_of_the_loop_fails_the_groups_and_is_raised(make: Make) -> None:
    class Interrupted(Queue):
        def finish(self, group: Group, trajectories: Sequence[Trajectory]) -> None:
            if group.number == 1:
                raise KeyboardInterrupt
            super().finish(group, trajectories)

    engine = make("inline by group")
    publish(engine, 0)
    queue = Interrupted(groups(3))
    engine.start(queue)
    with pytest.raises(KeyboardInterrupt):
        engine.pump()
    assert (sorted(queue.finished), sorted(queue.failed), len(queue.pending)) == ([0], [1], 1)


@pytest.mark.parametrize("name", ["thread", pytest.param("process by group", marks=pytest.mark.slow)])
def test_dead_thread_wakes_the_loop_and_raises_its_error(name: str) -> None:
    class Broken(Queue):
        def count_pending(self, block: bool = False) -> int:
            raise LookupError("no buffer")

    engine = made(name)
    queue = Broken()
    engine.start(queue)
    queue.wait_until(lambda: queue.closed)
    try:
        with pytest.raises(RolloutError, match="no buffer") as caught:
            engine.pump()
    finally:
        engine.close()
    error: BaseException | None = caught.value
    while error is not None and error.__cause__ is not None:
        error = error.__cause__
    assert isinstance(error, LookupError)


@pytest.mark.parametrize("on_sync", ["finish", "continue"])
@pytest.mark.parametrize("kind", [ThreadOptions, *(pytest.param(kind, marks=pytest.mark.slow) for kind in REMOTE)])
def test_answers_during_flips_are_of_one_version(kind: type[ThreadOptions], on_sync: str) -> None:
    options = kind(**BASE, workers=2, slots=4, on_sync=on_sync)
    engine = options.build(generator_config(Versioned, TASK, 0))
    publish(engine, 0, Versioned.state(0))
    prompts = groups(150)
    queue, numbers = Queue(prompts), itertools.count(len(prompts))
    engine.start(queue)
    queue.wait_for(1)
    version, dispatched = 0, len(prompts)

    def enough() -> bool:
        found = [answer for answers in list(queue.finished.values()) for answer in answers]
        changed = on_sync == "finish" or any(answer.span > 1 for answer in found)
        return changed and len(versions_of(found)) > 10

    # A busy machine may answer 150 groups on few versions. The test dispatches more groups until enough were seen.
    while len(queue.finished) + len(queue.failed) < dispatched:
        version += 1
        publish(engine, version, Versioned.state(version))
        assert engine.version == version
        if not queue.pending and not enough():
            queue.dispatch([attrs.evolve(group, number=next(numbers)) for group in prompts[:20]])
            dispatched += 20
    engine.close()

    assert queue.failed == {}
    spans = [answer.span for answers in queue.finished.values() for answer in answers]
    assert len({version for answers in queue.finished.values() for version in versions_of(answers)}) > 10
    assert (max(spans) > 1) == (on_sync == "continue")


def test_slow_score_does_not_delay_a_sync() -> None:
    inside, go_on = threading.Event(), threading.Event()

    @attrs.frozen(kw_only=True)
    class Slow(Addition):
        def grade(self, truth: str, answer: str) -> float:
            inside.set()
            assert go_on.wait(PATIENCE_S)
            return super().grade(truth, answer)

    engine = made("thread", Slow())
    publish(engine, 0)
    queue = Queue(groups(1))
    engine.start(queue)
    assert inside.wait(PATIENCE_S)
    publish(engine, 1)
    assert engine.version == 1
    go_on.set()
    queue.wait_for(1)
    engine.close()
    assert versions_of(queue.finished[0]) == {0}


def test_workers_claim_equal_shares() -> None:
    """Both threads answer a group: neither can finish before the other has started."""
    together = threading.Barrier(2)

    @attrs.frozen(kw_only=True)
    class Meeting(Addition):
        def grade(self, truth: str, answer: str) -> float:
            together.wait(PATIENCE_S)
            return 1.0

    engine = ThreadOptions(n=1, max_response_length=LENGTH, workers=2).build(generator_config(task=Meeting()))
    publish(engine, 0)
    queue = Queue(groups(8))
    serve(engine, queue, 8)
    engine.close()
    assert sorted(queue.finished) == list(range(8))
