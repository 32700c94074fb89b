"""Weight syncs while environments reply: each token has the version that it was sampled from."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import attrs
import numpy as np
import pytest

from helpers.environments import Countdown, Scripted, Talk
from helpers.rollouts import PATIENCE_S, TASK, TOKENIZER, Queue, generator_config, groups
from hooktrainer.models.policy import full_state
from hooktrainer.ports import Answer
from hooktrainer.rollout.decode_batch import Request
from hooktrainer.rollout.engine import make_parts
from hooktrainer.rollout.inline import InlineOptions
from hooktrainer.rollout.scheduler import Scheduler
from hooktrainer.rollout.thread import ThreadOptions

LONG = 24


def config_of(task: Talk) -> Any:
    return attrs.evolve(generator_config(Scripted, task, 0), max_length=TASK.longest_prompt + LONG)


class Gated(Countdown):
    """An environment that replies to its first turn when the test allows it."""

    entered = threading.Event()
    release = threading.Event()

    def step(self, answer: Answer) -> Any:
        if not self.answers:
            Gated.entered.set()
            assert Gated.release.wait(PATIENCE_S)
        return super().step(answer)


@pytest.fixture
def _gate() -> Iterator[None]:
    Gated.entered, Gated.release = threading.Event(), threading.Event()
    yield
    Gated.release.set()


@pytest.mark.usefixtures("_gate")
@pytest.mark.parametrize("on_sync", ["finish", "continue"])
@pytest.mark.parametrize("batching", ["continuous", "group"])
def test_turn_after_a_sync_uses_the_new_weights(on_sync: str, batching: str) -> None:
    options = ThreadOptions(n=2, max_response_length=LONG, workers=1, on_sync=on_sync, batching=batching)
    engine = options.build(config_of(Talk(of=Gated)))
    engine.stage(full_state(Scripted()), 3)
    engine.flip()
    queue = Queue(groups(1))
    engine.start(queue)
    assert Gated.entered.wait(PATIENCE_S)

    engine.stage(full_state(Scripted()), 4)  # does not wait for the environment
    engine.pause()
    engine.flip()
    engine.resume()
    Gated.release.set()
    queue.wait_for(1)
    engine.close()

    for answer in queue.finished[0]:
        assert answer.versions.tolist() == [3, 3, 3, 3, 4, 4, 4, 4, 4]
        assert answer.span == 2
        assert answer.text == "3\n+1\n3\n=\n3"


class Steps:
    """A scheduler with one group, stepped by the test."""

    def __init__(self, task: Talk) -> None:
        self.generator, self.weights = make_parts(InlineOptions(n=1, max_response_length=LONG), config_of(task))
        self.publish(3)
        self.scheduler = Scheduler(self.generator)
        (self.group,) = groups(1)
        self.scheduler.add([self.group])

    def publish(self, version: int) -> None:
        self.weights.stage(full_state(Scripted()), version)
        self.weights.flip()

    def finish(self, *, waits: bool) -> Request:
        while not (complete := self.scheduler.step(waits=waits)):
            pass
        self.generator.close()
        ((_, (request,)),) = complete
        return request


def test_answer_with_a_turn_of_a_failed_sync_starts_again() -> None:
    task = Talk()
    steps = Steps(task)
    for _ in range(2):  # the first turn, of version 3
        assert not steps.scheduler.step(waits=True)
    steps.publish(4)
    for _ in range(2):
        assert not steps.scheduler.step(waits=True)
    assert len(task.made) == 1
    steps.weights.unflip()

    request = steps.finish(waits=True)
    assert set(request.versions) == {3}
    turn = [*TOKENIZER.encode("3"), 1]
    assert request.tokens == [*turn, *TOKENIZER.encode("+1"), *turn, *TOKENIZER.encode("="), *turn]
    assert len(task.made) == 2
    assert request.conversation is not None
    assert request.conversation.text == "3\n+1\n3\n=\n3"
    np.testing.assert_array_equal(np.flatnonzero(~request.conversation.loss_mask(len(request.tokens))), [2, 3, 6])


@pytest.mark.usefixtures("_gate")
def test_reply_to_a_turn_of_a_failed_sync_is_discarded() -> None:
    task = Talk(of=Gated)
    steps = Steps(task)
    steps.publish(4)
    for _ in range(2):
        steps.scheduler.step()
    assert Gated.entered.wait(PATIENCE_S)
    steps.weights.unflip()
    steps.scheduler.step()
    Gated.release.set()

    request = steps.finish(waits=False)
    assert set(request.versions) == {3}
    assert request.conversation is not None
    assert request.conversation.text == "3\n+1\n3\n=\n3"
    assert len(task.made) == 2


@pytest.mark.usefixtures("_gate")
def test_other_groups_are_decoded_while_an_environment_thinks() -> None:
    engine = ThreadOptions(n=1, max_response_length=LONG, workers=1, slots=1).build(config_of(Talk(of=FirstIsGated)))
    FirstIsGated.count = 0
    engine.stage(full_state(Scripted()), 3)
    engine.flip()
    queue = Queue(groups(2))
    engine.start(queue)
    queue.wait_for(1)
    assert len(queue.finished) == 1
    Gated.release.set()
    queue.wait_for(2)
    engine.close()
    assert not queue.failed


class FirstIsGated(Countdown):
    count = 0

    def step(self, answer: Answer) -> Any:
        if not self.answers:
            FirstIsGated.count += 1
            if FirstIsGated.count == 1:
                assert Gated.release.wait(PATIENCE_S)
        return super().step(answer)
