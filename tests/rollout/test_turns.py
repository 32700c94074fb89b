"""Answers of several turns: observations are appended as they are, and only sampled tokens are marked for training."""

from __future__ import annotations

import math
import threading
from typing import Any

import attrs
import numpy as np
import pytest
import torch

from helpers.environments import Countdown, Scripted, Talk
from helpers.learners import logprobs_of
from helpers.rollouts import PATIENCE_S, TASK, TOKENIZER, Queue, generator_config, groups, publish
from hooktrainer import ports
from hooktrainer.errors import ConfigError
from hooktrainer.learner.batch import PaddedBatch
from hooktrainer.models.options import DecoderOptions
from hooktrainer.models.policy import full_state
from hooktrainer.ports import Answer, Example, Messages, Score, Trajectory
from hooktrainer.rollout.engine import make_parts
from hooktrainer.rollout.generator_config import GeneratorConfig
from hooktrainer.rollout.inline import InlineOptions
from hooktrainer.rollout.process.engine import ProcessOptions
from hooktrainer.rollout.thread import ThreadOptions

LONG = 24
BASE: dict[str, Any] = {"n": 2, "max_response_length": LONG}
ENGINES = {
    "inline": InlineOptions(**BASE),
    "inline by group": InlineOptions(**BASE, batching="group"),
    "2 threads": ThreadOptions(**BASE, workers=2),
    "thread, few slots": ThreadOptions(**BASE, workers=1, slots=3, on_sync="continue"),
    "thread by group": ThreadOptions(**BASE, workers=1, batching="group"),
    "2 processes": ProcessOptions(**BASE, workers=2),
    "process by group": ProcessOptions(**BASE, workers=1, batching="group"),
}
IN_ONE_PROCESS = [name for name in ENGINES if "process" not in name]
NAMES = [pytest.param(name, marks=() if name in IN_ONE_PROCESS else pytest.mark.slow) for name in ENGINES]


def config_of(task: ports.Task, policy: Any = Scripted) -> GeneratorConfig:
    return attrs.evolve(generator_config(policy, task, 0), max_length=TASK.longest_prompt + LONG)


def decoder() -> torch.nn.Module:
    """Return a model whose answers end often, after tokens of all kinds."""
    model = DecoderOptions(layers=2, width=16, heads=2).build(
        vocab_size=TOKENIZER.vocab_size, max_length=TASK.longest_prompt + LONG, seed=0
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.0)
    return model


def answered(
    task: ports.Task, options: Any = ENGINES["inline"], count: int = 3, policy: Any = Scripted, **changed: Any
) -> Queue:
    """Return what an engine did with some groups."""
    engine = attrs.evolve(options, **changed).build(config_of(task, policy))
    try:
        publish(engine, 3, full_state(policy()))
        queue = Queue(groups(count))
        engine.start(queue)
        engine.pump()
        queue.wait_for(count)
        return queue
    finally:
        engine.close()


def only(queue: Queue) -> list[Trajectory]:
    assert not queue.failed, queue.failed
    return [answer for number in sorted(queue.finished) for answer in queue.finished[number]]


def error_of(queue: Queue) -> tuple[str, str]:
    """Return the text and the reason of the failure of the first group."""
    error, reason = queue.failed[0]
    return str(error), reason


@pytest.mark.parametrize("name", NAMES)
def test_turns_and_observations_follow_each_other_in_every_engine(name: str) -> None:
    for answer in only(answered(Talk(), ENGINES[name])):
        sampled, first, second = TOKENIZER.encode("3").tolist(), TOKENIZER.encode("+1"), TOKENIZER.encode("=")
        turn = [*sampled, 1]
        assert answer.tokens.tolist() == [*turn, *first, *turn, *second, *turn]
        assert answer.loss_mask is not None
        assert answer.loss_mask.tolist() == [True, True, False, False, True, True, False, True, True]
        assert answer.versions.tolist() == [3] * 9
        assert answer.logprobs.tolist() == pytest.approx([0.0] * 9, abs=1e-6)
        assert (answer.score, answer.exact, answer.truncated) == (0.5, False, False)
        assert answer.text == "3\n+1\n3\n=\n3"
        assert (answer.length, answer.span) == (6, 1)


@pytest.mark.parametrize(
    "name", ["inline by group", "thread by group", pytest.param("process by group", marks=pytest.mark.slow)]
)
def test_answers_with_turns_repeat_bit_for_bit_by_group(name: str) -> None:
    found = [only(answered(Talk(), ENGINES[each], policy=decoder)) for each in ("inline by group", name)]
    assert any(answer.loss_mask is not None for answer in found[0])
    for one, other in zip(*found, strict=True):
        for field in ("tokens", "logprobs", "versions"):
            np.testing.assert_array_equal(getattr(one, field), getattr(other, field))


@pytest.mark.parametrize(
    "name", ["inline", "thread, few slots", pytest.param("process by group", marks=pytest.mark.slow)]
)
def test_log_probabilities_of_later_turns_are_those_of_the_whole_text(name: str) -> None:
    """Tokens of a turn see the turns and observations before them, at their own positions."""
    queue = answered(Talk(), ENGINES[name], count=6, policy=decoder)
    later = 0
    for number, group in enumerate(groups(6)):
        whole = attrs.evolve(group, trajectories=tuple(queue.finished[number]))
        batch = PaddedBatch.of([whole], pad_id=0, device=torch.device("cpu"))
        expected = logprobs_of(batch, decoder(), 1.0)
        torch.testing.assert_close(batch.behaviour[batch.mask], expected[batch.mask].detach(), rtol=0, atol=1e-5)
        later += sum(answer.length < len(answer.tokens) for answer in whole.trajectories)
    assert later >= 3


@pytest.mark.slow
def test_tokens_repeat_for_every_engine() -> None:
    found = [only(answered(Talk(), options, count=5, policy=decoder)) for options in ENGINES.values()]
    texts = [[answer.tokens.tolist() for answer in answers] for answers in found]
    assert all(each == texts[0] for each in texts)


def test_validation_answers_in_turns() -> None:
    engine = ENGINES["inline"].build(config_of(Talk()))
    publish(engine, 0, full_state(Scripted()))
    answers = engine.answer([group.prompt for group in groups(3)])
    engine.close()
    assert [answer.text for answer in answers] == ["3\n+1\n3\n=\n3"] * 3
    assert [answer.score for answer in answers] == [0.5] * 3


def test_several_sampled_answers_outside_of_a_run_have_turns() -> None:
    generator, weights = make_parts(InlineOptions(**BASE, slots=3), config_of(Talk()))
    weights.stage(full_state(Scripted()), 0)
    weights.flip()
    found = generator.sampled([group.prompt for group in groups(2)])
    generator.close()
    assert [[answer.text for answer in answers] for answers in found] == [["3\n+1\n3\n=\n3"] * 2] * 2


class TestEnvironment:
    def test_each_answer_has_its_own_environment_off_the_decoding_thread(self) -> None:
        task = Talk()
        answered(task, count=2)
        assert len(task.made) == 4
        assert all(threading.get_ident() not in one.threads for one in task.made)
        turns = [(one.text, one.turn, one.last, one.truncated, one.version) for one in task.made[0].answers]
        assert turns == [("3", number, False, False, 3) for number in range(3)]

    def test_score_of_the_last_turn_may_report_metrics(self) -> None:
        (first, *_) = only(answered(Talk(result=Score(2.0, exact=True, metrics={"calls": 2}))))
        assert (first.score, first.exact, first.metrics) == (2.0, True, {"calls": 2.0})

    def test_score_at_once_is_an_answer_of_one_turn(self) -> None:
        (first, *_) = only(answered(Talk(replies=(), result=1)))
        assert (first.text, first.score, first.exact, first.loss_mask) == ("3", 1.0, True, None)

    def test_asynchronous_environment_is_awaited(self) -> None:
        (first, *_) = only(answered(Talk(of=Asynchronous)))
        assert first.text == "3\n+1\n3\n=\n3"

    def test_task_without_an_environment_for_an_example_scores_it_itself(self) -> None:
        answers = only(answered(Sometimes(), count=8))
        assert {answer.score for answer in answers} == {0.5, 0.25}
        assert {answer.loss_mask is None for answer in answers} == {True, False}

    def test_plain_task_has_no_environments(self) -> None:
        generator, _ = make_parts(InlineOptions(**BASE), config_of(TASK))
        assert generator.turns is None
        assert all(answer.loss_mask is None for answer in only(answered(TASK)))

    def test_empty_observation_lets_the_policy_continue(self) -> None:
        (first, *_) = only(answered(Talk(replies=("",))))
        assert first.tokens.tolist() == [*TOKENIZER.encode("3"), 1] * 2


class Asynchronous(Countdown):
    async def reset(self, example: Example) -> Any:  # type: ignore[override]
        return super().reset(example)

    async def step(self, answer: Answer) -> Any:  # type: ignore[override]
        return super().step(answer)


@attrs.frozen(kw_only=True)
class Sometimes(Talk):
    def environment(self, example: Example) -> Any:
        return super().environment(example) if example.number % 2 else None

    def grade(self, truth: str, answer: str) -> float:
        return 0.25


class TestLimits:
    def test_last_turn_is_announced_and_ends_without_a_score_as_zero(self) -> None:
        task = Talk(replies=("+1",) * 9)
        (first, *_) = only(answered(task, max_turns=2))
        assert first.text == "3\n+1\n3\n+1"
        assert (first.score, first.exact, first.truncated) == (0.0, False, True)
        assert first.tokens.tolist()[-1] == 1  # nothing after the last sampled token
        assert [one.last for one in task.made[0].answers] == [False, True]

    def test_environment_scores_the_last_turn(self) -> None:
        (first, *_) = only(answered(Talk(replies=("+1",), result=0.75), max_turns=2))
        assert (first.score, first.truncated) == (0.75, False)

    def test_observation_that_leaves_no_room_ends_the_answer(self) -> None:
        (first, *_) = only(answered(Talk(replies=("1" * 8,)), max_response_length=10))
        assert (len(first.tokens), first.score, first.truncated) == (2, 0.0, True)

    def test_observation_that_leaves_room_for_one_token_is_read(self) -> None:
        task = Talk(replies=("1" * 8,))
        (first, *_) = only(answered(task, max_response_length=11))
        assert (len(first.tokens), first.score, first.truncated) == (11, 0.5, True)
        assert [(one.last, one.truncated) for one in task.made[0].answers] == [(False, False), (True, True)]

    def test_turn_that_is_cut_off_is_the_last_one(self) -> None:
        task = Talk(replies=("0", "1"))
        (first, *_) = only(answered(task))
        assert (len(first.tokens), first.score, first.truncated) == (LONG, 0.0, True)
        assert [(one.last, one.truncated) for one in task.made[0].answers] == [(False, False), (True, True)]


class TestErrors:
    @pytest.mark.parametrize("name", NAMES)
    def test_error_of_a_tool_fails_its_group_and_names_turn_and_text(self, name: str) -> None:
        queue = answered(Talk(replies=("+1", ZeroDivisionError("by zero"))), ENGINES[name], count=1)
        text, reason = error_of(queue)
        prompt = groups(1)[0].prompt.text
        assert text == f"turn 2 of the answer to {prompt!r}, '3': ZeroDivisionError: by zero"
        assert reason == "error"

    def test_error_of_a_tool_fails_no_other_group(self) -> None:
        queue = answered(Talk(of=FailsFirst), count=4)
        assert len(queue.failed) == 1
        assert len(queue.finished) == 3

    def test_error_can_be_an_observation(self) -> None:
        """The alphabet of the test has no letters, so this task reads errors as numbers."""
        task = Talk(replies=("+1", Short()))
        queue = answered(task, tool_errors="observe")
        text, _ = error_of(queue)
        assert "the observation cannot be encoded" in "".join(queue.failed[0][0].__notes__)
        assert text.endswith("Short: 1")

    @pytest.mark.parametrize("tool_errors", ["fail", "observe"])
    @pytest.mark.parametrize(
        ("reply", "found"),
        [
            (None, "Countdown.step returned None; expected an observation"),
            (math.nan, "Countdown.step returned nan for the answer '3'"),
            ({"score": 1}, "Countdown.step returned {'score': 1}; expected an observation"),
            (["text"], "Countdown.step returned ['text']; expected an observation"),
            (b"+1", "Countdown.step returned b'+1'; expected an observation"),
            ("letters", "the observation cannot be encoded: 'l' in 'letters' is not in the alphabet"),
            (
                [{"role": "tool", "content": "1"}],
                "the observation cannot be encoded: a character tokenizer reads texts",
            ),
        ],
    )
    def test_reply_of_another_kind_fails_the_group(self, tool_errors: str, reply: Any, found: str) -> None:
        text, reason = error_of(answered(Talk(replies=(reply,)), count=1, tool_errors=tool_errors))
        assert found in text
        assert text.startswith("turn 1 of the answer to ")
        assert reason == "error"

    def test_error_of_the_task_fails_its_group_only(self) -> None:
        queue = answered(NoneForTheFirst(), count=3, tool_errors="observe")
        text, reason = error_of(queue)
        assert text.endswith("ReplyError: NoneForTheFirst.environment raised KeyError: 'no sandbox'")
        assert reason == "error"
        assert sorted(queue.finished) == [1, 2]

    def test_worker_report_names_the_step_that_a_group_waits_for(self) -> None:
        Hangs.release, Hangs.entered = threading.Event(), threading.Event()
        engine = ENGINES["2 threads"].build(config_of(Talk(of=Hangs)))
        publish(engine, 3, full_state(Scripted()))
        queue = Queue(groups(1))
        engine.start(queue)
        assert Hangs.entered.wait(PATIENCE_S)
        report = engine.describe_workers(0)
        Hangs.release.set()
        engine.close()
        assert "Hangs.step" in report or "in step" in report or "test_turns.py" in report

    def test_reset_that_returns_another_prompt_fails_the_group(self) -> None:
        text, _ = error_of(answered(Talk(of=OtherPrompt), count=1))
        assert "OtherPrompt.reset returned '1+1=', expected the prompt of the example" in text

    @pytest.mark.parametrize("name", IN_ONE_PROCESS)
    def test_tool_that_hangs_fails_its_group_at_the_deadline(self, name: str) -> None:
        release = threading.Event()
        Hangs.release = release
        try:
            engine = attrs.evolve(ENGINES[name], turn_timeout_s=0.2).build(config_of(Talk(of=Hangs)))
            publish(engine, 3, full_state(Scripted()))
            queue = Queue(groups(1))
            engine.start(queue)
            engine.pump()
            queue.wait_for(1)
        finally:
            release.set()
            engine.close()
        text, reason = error_of(queue)
        assert reason == "timeout"
        assert "Hangs.step did not return within rollout.turn_timeout_s = 0.2 s" in text

    def test_engine_closes_while_a_tool_hangs(self) -> None:
        Hangs.release = threading.Event()
        engine = ENGINES["2 threads"].build(config_of(Talk(of=Hangs)))
        publish(engine, 3, full_state(Scripted()))
        queue = Queue(groups(2))
        Hangs.entered = threading.Event()
        engine.start(queue)
        assert Hangs.entered.wait(PATIENCE_S)
        engine.close()
        Hangs.release.set()
        assert not queue.finished

    def test_tokenizer_that_cannot_encode_observations_is_refused_at_build(self) -> None:
        config = attrs.evolve(config_of(Talk()), tokenizer=NoObservations())
        with pytest.raises(ConfigError, match="task: its environments write observations, and the NoObservations"):
            make_parts(InlineOptions(**BASE), config)


@attrs.frozen(kw_only=True)
class NoneForTheFirst(Talk):
    def environment(self, example: Example) -> Any:
        if example.text == groups(1)[0].prompt.text:
            raise KeyError("no sandbox")
        return super().environment(example)


class Short(Exception):
    def __str__(self) -> str:
        return "1"


class FailsFirst(Countdown):
    count = 0

    def step(self, answer: Answer) -> Any:
        FailsFirst.count += 1
        if FailsFirst.count == 1:
            raise OSError("first")
        return super().step(answer)


class OtherPrompt(Countdown):
    def reset(self, example: Example) -> Any:
        return "1+1="


class Hangs(Countdown):
    release = threading.Event()
    entered = threading.Event()

    def step(self, answer: Answer) -> Any:
        Hangs.entered.set()
        Hangs.release.wait(PATIENCE_S)
        return 0.0


class NoObservations:
    vocab_size, pad_id, eos_ids = TOKENIZER.vocab_size, 0, TOKENIZER.eos_ids

    def encode(self, prompt: str | Messages) -> ports.Tokens:
        return TOKENIZER.encode(prompt)

    def decode(self, tokens: ports.Tokens) -> str:
        return TOKENIZER.decode(tokens)
