"""Continuous batching: full slots, whole groups, and syncs while requests are in flight."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import attrs
import numpy as np
import pytest
import torch
from torch import nn

from helpers.rollouts import LENGTH, PATIENCE_S, TASK, TOKENIZER, build, generator_config, groups, versions_of
from hooktrainer.algorithms.logprobs import log_policy, of_tokens
from hooktrainer.models.policy import full_state
from hooktrainer.ports import Group, Trajectory
from hooktrainer.rollout.decode_batch import DecodeBatch
from hooktrainer.rollout.engine import make_parts
from hooktrainer.rollout.generation import Generator
from hooktrainer.rollout.options import LocalOptions
from hooktrainer.rollout.scheduler import Scheduler
from hooktrainer.weight_sync.double_buffer import DoubleBuffer

OPTIONS = LocalOptions(n=3, max_response_length=LENGTH, slots=4)
MODELS = {0: build(), 1: build(scale=2.5, seed=1)}


def made(options: LocalOptions = OPTIONS, seed: int = 0) -> tuple[Generator, DoubleBuffer]:
    generator, weights = make_parts(options, generator_config(seed=seed))
    publish(weights, 0)
    return generator, weights


def publish(weights: DoubleBuffer, version: int) -> None:
    weights.stage(full_state(MODELS[version]), version)
    weights.flip()


def run(scheduler: Scheduler, pending: Sequence[Group]) -> dict[int, list[Trajectory]]:
    """Answer all of these groups, adding them as there is room."""
    left, answers = list(pending), {}
    while left or scheduler:
        room = scheduler.room()
        scheduler.add(left[:room])
        del left[:room]
        answers |= advance(scheduler)
    return answers


def advance(scheduler: Scheduler) -> dict[int, list[Trajectory]]:
    answers = {}
    for group, requests in scheduler.step():
        answers[group.number] = scheduler._generator.trajectories(group.prompt, requests)
        scheduler.done(group)
    return answers


def tokens_of(answers: dict[int, list[Trajectory]]) -> dict[int, list[list[int]]]:
    return {number: [answer.tokens.tolist() for answer in own] for number, own in answers.items()}


def logprobs_of(model: nn.Module, group: Group, answer: Trajectory, temperature: float = 1.0) -> np.ndarray:
    """Compute log-probabilities by a forward pass over prompt and answer."""
    prompt = group.prompt.tokens
    with torch.no_grad():
        logits = model(torch.from_numpy(np.concatenate([prompt, answer.tokens]))[None])[:, len(prompt) - 1 : -1]
    return of_tokens(log_policy(logits, temperature), torch.from_numpy(answer.tokens)[None])[0].numpy()


@pytest.mark.parametrize("slots", [1, 4, 64])
def test_all_slots_are_filled_while_requests_wait(slots: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[int] = []
    step = DecodeBatch.step
    monkeypatch.setattr(DecodeBatch, "step", lambda batch: (rows.append(len(batch.rows)), step(batch))[1])

    answers = run(Scheduler(made(attrs.evolve(OPTIONS, slots=slots))[0]), groups(8))

    tokens = sum(len(answer.tokens) for own in answers.values() for answer in own)
    busiest = min(slots, 8 * OPTIONS.n)
    assert sum(rows) == tokens
    assert rows[0] == busiest
    draining = [count for count in rows if count < busiest]
    assert rows == [busiest] * (len(rows) - len(draining)) + draining
    assert len(draining) < LENGTH


@pytest.mark.parametrize("options", [{"slots": 1}, {"slots": 64}, {"batching": "group"}], ids=str)
def test_tokens_do_not_depend_on_other_requests_in_the_batch(options: dict[str, object]) -> None:
    expected = run(Scheduler(made()[0]), groups(6))

    answers = run(Scheduler(made(attrs.evolve(OPTIONS, **options))[0]), groups(6)[::-1])

    assert tokens_of(dict(sorted(answers.items()))) == tokens_of(dict(sorted(expected.items())))


def test_answers_depend_on_seed_and_dispatch_number() -> None:
    group = groups(1)[0]
    first = tokens_of(run(Scheduler(made()[0]), [group]))[0]

    assert tokens_of(run(Scheduler(made()[0]), [attrs.evolve(group, number=9)]))[9] != first
    assert tokens_of(run(Scheduler(made(seed=1)[0]), [group]))[0] != first


def test_groups_batched_by_group_do_not_depend_on_other_groups() -> None:
    options = attrs.evolve(OPTIONS, batching="group")
    all_of_them = run(Scheduler(made(options)[0]), groups(6))
    for group in groups(6):
        alone = run(Scheduler(made(options)[0]), [group])[group.number]
        for one, other in zip(alone, all_of_them[group.number], strict=True):
            np.testing.assert_array_equal(one.logprobs, other.logprobs)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("batching", ["continuous", "group"])
def test_log_probabilities_equal_those_of_a_full_forward_pass(batching: str, temperature: float) -> None:
    options = attrs.evolve(OPTIONS, batching=batching, temperature=temperature)
    answers = run(Scheduler(made(options)[0]), groups(6))
    for group in groups(6):
        for answer in answers[group.number]:
            expected = logprobs_of(MODELS[0], group, answer, temperature)
            np.testing.assert_allclose(answer.logprobs, expected, atol=2e-4)


def test_trajectories_carry_score_text_version_and_truncation() -> None:
    answers = run(Scheduler(made(LocalOptions(n=8, max_response_length=2))[0]), groups(2))
    for group in groups(2):
        for answer in answers[group.number]:
            assert answer.text == TOKENIZER.decode(answer.tokens)
            assert answer.score == TASK.grade(group.prompt.example.row["truth"], answer.text)
            assert answer.versions.tolist() == [0] * len(answer.tokens)
            assert answer.truncated == TOKENIZER.eos_ids.isdisjoint(answer.tokens.tolist())
            assert len(answer.tokens) == len(answer.logprobs) <= 2


def test_group_stays_in_the_scheduler_until_all_its_answers_are_complete() -> None:
    scheduler = Scheduler(made()[0])
    scheduler.add(groups(2))
    handed_in = []
    while len(scheduler):
        handed_in += advance(scheduler)
        assert len(scheduler) == 2 - len(handed_in)
    assert sorted(handed_in) == [0, 1]


def test_requests_in_flight_keep_their_weights_and_new_ones_use_the_published() -> None:
    generator, weights = made()
    scheduler = Scheduler(generator)
    pending = groups(4)
    scheduler.add(pending)
    answers = advance(scheduler)
    publish(weights, 1)

    answers |= run(scheduler, [])

    spans = {(*versions_of([answer]),) for own in answers.values() for answer in own}
    assert spans == {(0,), (1,)}
    for group in pending:
        for answer in answers[group.number]:
            model = MODELS[int(answer.versions[0])]
            np.testing.assert_allclose(answer.logprobs, logprobs_of(model, group, answer), atol=2e-4)


@pytest.mark.parametrize("batching", ["continuous", "group"])
def test_partial_rollouts_use_the_new_weights_from_the_next_token(batching: str) -> None:
    generator, weights = made(attrs.evolve(OPTIONS, n=4, on_sync="continue", batching=batching))
    scheduler = Scheduler(generator)
    pending = groups(3)
    answers: dict[int, list[Trajectory]] = {}
    left = list(pending)
    published = False
    while left or scheduler:
        room = scheduler.room()
        scheduler.add(left[:room])
        del left[:room]
        answers |= advance(scheduler)
        answers |= advance(scheduler) if scheduler else {}
        if not published:
            publish(weights, 1)
            published = True

    everything = [(group, answer) for group in pending for answer in answers[group.number]]
    assert {answer.span for _, answer in everything} == {1, 2}
    for group, answer in everything:
        assert (np.diff(answer.versions) >= 0).all()
        by_version = np.stack([logprobs_of(MODELS[version], group, answer) for version in (0, 1)])
        expected = by_version[answer.versions, np.arange(len(answer.tokens))]
        np.testing.assert_allclose(answer.logprobs, expected, atol=2e-4)


@pytest.mark.parametrize("on_sync", ["finish", "continue"])
def test_answers_generated_on_weights_of_a_failed_sync_are_discarded(on_sync: str) -> None:
    generator, weights = made(attrs.evolve(OPTIONS, on_sync=on_sync))
    expected = tokens_of(run(Scheduler(generator), groups(4)))
    scheduler = Scheduler(generator)
    publish(weights, 1)
    scheduler.add(groups(4))
    while not any(request.complete for request in scheduler._groups[1][1]):
        advance(scheduler)
    weights.unflip()

    answers = run(scheduler, [])

    assert 1 in answers
    assert {version for own in answers.values() for version in versions_of(own)} == {0}
    assert tokens_of(answers) == {number: expected[number] for number in answers}


def test_an_idle_worker_does_not_delay_a_sync() -> None:
    generator, weights = made()
    run(Scheduler(generator), groups(2))
    syncs = threading.Thread(target=lambda: [publish(weights, 1) for _ in range(3)])
    syncs.start()
    syncs.join(PATIENCE_S)
    assert not syncs.is_alive()


def publish_before_weights_are_taken(
    monkeypatch: pytest.MonkeyPatch, generator: Generator, weights: DoubleBuffer, version: int
) -> None:
    """Publish after the scheduler has read the version and before it opens its first batch."""
    opened = generator.decode_batch

    @contextmanager
    def decode_batch(slots: int) -> Iterator[DecodeBatch]:
        monkeypatch.undo()
        publish(weights, version)
        with opened(slots) as batch:
            yield batch

    monkeypatch.setattr(generator, "decode_batch", decode_batch)


@pytest.mark.parametrize("on_sync", ["finish", "continue"])
def test_versions_of_an_answer_never_decrease_if_a_sync_fails_while_a_batch_opens(
    on_sync: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator, weights = made(attrs.evolve(OPTIONS, on_sync=on_sync))
    expected = tokens_of(run(Scheduler(generator), groups(2)))
    scheduler = Scheduler(generator)
    publish_before_weights_are_taken(monkeypatch, generator, weights, 1)
    scheduler.add(groups(2))
    answers = advance(scheduler)
    assert {version for _, own in scheduler._groups.values() for one in own for version in one.versions} == {1}
    weights.unflip()

    answers |= run(scheduler, [])

    assert {version for own in answers.values() for version in versions_of(own)} == {0}
    assert tokens_of(answers) == expected


def test_answers_of_a_failed_sync_are_discarded_even_if_its_version_is_published_later() -> None:
    generator, weights = made(attrs.evolve(OPTIONS, n=2, slots=1))
    scheduler = Scheduler(generator)
    weights.stage(full_state(build(scale=2.0, seed=2)), 1)
    weights.flip()
    (group,) = groups(1)
    scheduler.add([group])
    while not any(request.complete for request in scheduler._groups[0][1]):
        advance(scheduler)
    weights.unflip()
    publish(weights, 1)

    answers = run(scheduler, [])[0]

    assert versions_of(answers) == {1}
    for answer in answers:
        np.testing.assert_allclose(answer.logprobs, logprobs_of(MODELS[1], group, answer), atol=2e-4)


def started(scheduler: Scheduler) -> set[int]:
    """Return the groups with a sampled token."""
    return {number for number, (_, own) in scheduler._groups.items() if any(request.tokens for request in own)}


@pytest.mark.parametrize("on_sync", ["finish", "continue"])
def test_no_request_starts_while_paused_and_those_in_flight_continue(on_sync: str) -> None:
    generator, weights = made(attrs.evolve(OPTIONS, on_sync=on_sync, slots=64))
    scheduler = Scheduler(generator)
    first, *later = groups(3)
    scheduler.add([first])
    advance(scheduler)
    weights.pause()
    scheduler.add(later)
    answers: dict[int, list[Trajectory]] = {}
    while not answers:
        answers = advance(scheduler)
        assert started(scheduler) <= {0}
    weights.resume()

    answers |= run(scheduler, [])

    assert sorted(answers) == [0, 1, 2]


def test_a_group_begins_when_its_first_request_gets_a_slot() -> None:
    scheduler = Scheduler(made()[0])
    scheduler.add(groups(3))
    advance(scheduler)
    assert started(scheduler) == {0, 1}  # four slots, three answers each
    assert sorted(run(scheduler, [])) == [0, 1, 2]
