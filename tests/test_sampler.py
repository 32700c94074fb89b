"""The sampler: right distribution, right log-probabilities, random numbers that belong to a group."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from hooktrainer.algorithms.logprobs import log_policy, of_tokens
from hooktrainer.errors import RolloutError
from hooktrainer.groups import Group, Prompt, Trajectory
from hooktrainer.learner.batch import PaddedBatch
from hooktrainer.models.decoder import Decoder
from hooktrainer.models.policy import full_state
from hooktrainer.rollout.generator import Generator
from hooktrainer.rollout.options import Sampling
from hooktrainer.rollout.sampler import inverse_cdf, pad_left, sample
from hooktrainer.tasks.addition import Addition
from hooktrainer.tasks.prompts import TaskPrompts
from hooktrainer.tasks.tokenizer import CharTokenizer

TASK = Addition()
TOKENIZER = CharTokenizer(TASK.alphabet)
CPU = torch.device("cpu")
EOS = TOKENIZER.eos_id


def build() -> nn.Module:
    model = Decoder(layers=2, width=16, heads=2).build(vocab_size=TOKENIZER.vocab_size, max_length=20, seed=0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0)  # far from uniform, so that a wrong temperature shows
    return model


def generator(options: Sampling, *, seed: int = 0) -> Generator:
    made = Generator(policy=build, tokenizer=TOKENIZER, task=TASK, seed=seed, options=options)
    made.weights.stage(full_state(build()), 7)
    made.weights.flip()
    return made


def ragged_groups(count: int) -> list[Group]:
    prompts = TaskPrompts(TASK, TOKENIZER, seed=0).take(6)
    assert len({len(prompt.tokens) for prompt in prompts}) > 1
    return [Group(number=number, stamp=8, prompt=prompt) for number, prompt in enumerate(prompts[:count])]


class Scripted(nn.Module):
    """Gives at each place the logits that it was built with, whatever the tokens."""

    def __init__(self, places: Tensor) -> None:
        super().__init__()
        self.places = places
        self.calls = 0

    def new_cache(self, rows: int, length: int) -> Scripted:
        return self

    def repeat(self, times: int) -> Scripted:
        return self

    def forward(self, tokens: Tensor, left_pad: Tensor | None = None, **_: object) -> Tensor:
        self.calls += 1
        return self.places[self.calls - 1].expand(len(tokens), 1, -1)


def scripted(rows: list[list[float]], draws: list[list[float]] | None, *, n: int = 1, longest: int = 3):
    model = Scripted(torch.log(torch.tensor(rows)))
    uniforms = None if draws is None else np.array(draws)
    prompts = [np.array([2, 3])]
    sampled = sample(
        model, prompts, uniforms, n=n, temperature=1.0, max_response_length=longest, eos_id=EOS, device=CPU
    )
    return sampled, model


def test_tokens_follow_their_random_numbers_and_end_at_the_end_token() -> None:
    probabilities = [0.1, 0.2, 0.3, 0.4]
    sampled, model = scripted([probabilities] * 3, [[0.05, 0.95, 0.5], [0.15, 0.0, 0.0]], n=2)

    assert sampled.tokens[0].tolist() == [0, 3, 2]
    assert sampled.tokens[1, 0] == EOS
    assert sampled.lengths.tolist() == [3, 1]
    assert sampled.ended.tolist() == [False, True]
    np.testing.assert_allclose(np.exp(sampled.logprobs[0]), [0.1, 0.4, 0.3], rtol=1e-6)
    assert model.calls == 3


def test_sampling_stops_once_every_answer_has_ended() -> None:
    sampled, model = scripted([[0.1, 0.8, 0.1]] * 3, [[0.5, 0.5, 0.5]])
    assert sampled.tokens.tolist() == [[EOS]]
    assert model.calls == 1


def test_greedy_takes_the_most_likely_token() -> None:
    sampled, _ = scripted([[0.1, 0.2, 0.7], [0.6, 0.1, 0.3], [0.1, 0.8, 0.1]], None)
    assert sampled.tokens.tolist() == [[2, 0, EOS]]


def test_logits_that_are_not_finite_are_an_error() -> None:
    with pytest.raises(RolloutError, match="not finite"):
        scripted([[float("nan")] * 3] * 3, [[0.1] * 3])


@given(st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=8))
def test_a_token_of_probability_zero_is_never_chosen(draws: list[float]) -> None:
    policy = torch.log(torch.tensor([0.0, 0.5, 0.0, 0.5, 0.0])).expand(len(draws), -1)
    tokens = inverse_cdf(policy, torch.tensor([*draws[:-1], np.nextafter(1.0, 0.0)], dtype=torch.float64))
    assert set(tokens.tolist()) <= {1, 3}


def test_the_distribution_is_that_of_the_policy() -> None:
    policy = torch.log(torch.tensor([0.5, 0.125, 0.375])).expand(8000, -1)
    draws = (torch.arange(8000, dtype=torch.float64) + 0.5) / 8000
    assert torch.bincount(inverse_cdf(policy, draws)).tolist() == [4000, 1000, 3000]


def test_prompts_are_aligned_at_their_ends() -> None:
    tokens, left_pad = pad_left([np.array([5, 6]), np.array([7])], CPU)
    assert tokens.tolist() == [[5, 6], [0, 7]]
    assert left_pad is not None
    assert left_pad.tolist() == [0, 1]
    assert pad_left([np.array([5]), np.array([7])], CPU)[1] is None


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_log_probabilities_are_those_of_the_learners_forward(temperature: float) -> None:
    groups = ragged_groups(5)
    answers = generator(Sampling(n=4, temperature=temperature, max_response_length=6)).groups(groups)
    whole = [
        Group(number=group.number, stamp=8, prompt=group.prompt, trajectories=tuple(own))
        for group, own in zip(groups, answers, strict=True)
    ]
    batch = PaddedBatch.of(whole, pad_id=TOKENIZER.pad_id, device=CPU)

    with torch.no_grad():
        logits = build()(batch.tokens, batch.left_pad, logits_to_keep=batch.responses.shape[1] + 1)[:, :-1]
    log_ratio = of_tokens(log_policy(logits, temperature), batch.responses) - batch.behaviour

    assert log_ratio[batch.mask].abs().mean() < 1e-4
    assert bool(torch.isnan(log_ratio[~batch.mask]).all())


def tokens_of(answers: list[Trajectory]) -> list[list[int]]:
    return [answer.tokens.tolist() for answer in answers]


def test_a_groups_answers_do_not_depend_on_its_batch_mates() -> None:
    groups = ragged_groups(5)
    made = generator(Sampling(n=3, max_response_length=6))

    together = made.groups(groups)
    reversed_order = made.groups(groups[::-1])[::-1]
    alone = [made.groups([group])[0] for group in groups]

    for own in (reversed_order, alone):
        assert [tokens_of(answers) for answers in own] == [tokens_of(answers) for answers in together]
    again = generator(Sampling(n=3, max_response_length=6)).groups([groups[2]])[0]
    np.testing.assert_array_equal(again[0].logprobs, alone[2][0].logprobs)


def test_seed_and_dispatch_number_decide_the_answers() -> None:
    group = ragged_groups(2)[0]
    other_number = Group(number=99, stamp=8, prompt=group.prompt)
    options = Sampling(n=4, max_response_length=6)

    first = tokens_of(generator(options).groups([group])[0])

    assert tokens_of(generator(options).groups([other_number])[0]) != first
    assert tokens_of(generator(options, seed=1).groups([group])[0]) != first


def test_trajectories_carry_score_text_version_and_truncation() -> None:
    group = ragged_groups(2)[0]
    for answer in generator(Sampling(n=8, max_response_length=2)).groups([group])[0]:
        assert answer.text == TOKENIZER.decode(answer.tokens)
        assert answer.score == TASK.score(group.prompt.truth, answer.text)
        assert answer.versions.tolist() == [7] * len(answer.tokens)
        assert answer.truncated == (EOS not in answer.tokens)
        assert len(answer.tokens) == len(answer.logprobs) <= 2


def test_greedy_answers_repeat_and_may_be_none() -> None:
    made = generator(Sampling(max_response_length=6))
    prompts: list[Prompt] = [group.prompt for group in ragged_groups(3)]
    assert tokens_of(made.greedy(prompts)) == tokens_of(made.greedy(prompts))
    assert made.greedy([]) == []


def test_nothing_is_generated_before_the_first_publish() -> None:
    made = Generator(policy=build, tokenizer=TOKENIZER, task=TASK, seed=0, options=Sampling())
    with pytest.raises(RolloutError, match="no weights were published"):
        made.groups(ragged_groups(2))
