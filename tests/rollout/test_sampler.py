"""The sampler: its distribution, its log-probabilities, and the random numbers of each answer."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hooktrainer.rollout.sampler import inverse_cdf, sample_tokens, uniform_draws


def test_sampled_tokens_follow_the_random_numbers_and_the_temperature() -> None:
    logits = torch.log(torch.tensor([0.1, 0.2, 0.3, 0.4])).expand(3, -1)
    draws = torch.tensor([0.05, 0.15, 0.95], dtype=torch.float64)

    tokens, logprobs = sample_tokens(logits, 1.0, draws)
    cold_tokens, cold_logprobs = sample_tokens(logits, 0.5, draws)

    assert tokens.tolist() == [0, 1, 3]
    np.testing.assert_allclose(logprobs.exp(), [0.1, 0.2, 0.4], rtol=1e-6)
    assert cold_tokens.tolist() == [1, 1, 3]
    np.testing.assert_allclose(cold_logprobs.exp(), [4 / 30, 4 / 30, 16 / 30], rtol=1e-6)


def test_greedy_sampling_takes_the_most_likely_token() -> None:
    tokens, _ = sample_tokens(torch.tensor([[0.1, 0.2, 0.7], [0.6, 0.1, 0.3]]), 1.0, None)
    assert tokens.tolist() == [2, 0]


@given(st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=8))
def test_a_token_of_probability_zero_is_never_chosen(draws: list[float]) -> None:
    policy = torch.log(torch.tensor([0.0, 0.5, 0.0, 0.5, 0.0])).expand(len(draws), -1)
    tokens = inverse_cdf(policy, torch.tensor([*draws[:-1], np.nextafter(1.0, 0.0)], dtype=torch.float64))
    assert set(tokens.tolist()) <= {1, 3}


def test_sampled_tokens_have_the_distribution_of_the_policy() -> None:
    policy = torch.log(torch.tensor([0.5, 0.125, 0.375])).expand(8000, -1)
    draws = (torch.arange(8000, dtype=torch.float64) + 0.5) / 8000
    assert torch.bincount(inverse_cdf(policy, draws)).tolist() == [4000, 1000, 3000]


@pytest.mark.parametrize(("n", "length"), [(2, 8), (8, 3), (8, 8)])
def test_random_numbers_of_an_answer_depend_on_seed_dispatch_number_and_position_only(n: int, length: int) -> None:
    whole = uniform_draws(3, 7, 8, 8)
    np.testing.assert_array_equal(uniform_draws(3, 7, n, length), whole[:n, :length])
    assert len(np.unique(np.stack([whole, uniform_draws(3, 8, 8, 8), uniform_draws(4, 7, 8, 8)]))) == 3 * 64
