"""GRPO advantages, on numbers that can be checked by hand."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hooktrainer.algorithms.advantages import grpo


def test_ragged_and_interleaved_groups() -> None:
    scores = torch.tensor([1, 2, 0, 5, 0.5, 0.5], dtype=torch.float64)
    groups = torch.tensor([0, 1, 0, 2, 1, 0])

    expected = torch.tensor([0.999998, 0.707106115, -0.999998, 0, -0.707106115, 0], dtype=torch.float64)
    torch.testing.assert_close(grpo(scores, groups), expected, rtol=1e-7, atol=1e-9)

    wider = torch.tensor([0.99980004, 0.707040121, -0.99980004, 0, -0.707040121, 0], dtype=torch.float64)
    torch.testing.assert_close(grpo(scores, groups, epsilon=1e-4), wider, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("scores", [[5.0], [0.1, 0.1, 0.1], [0.0, 0.0], []], ids=str)
def test_a_group_of_one_or_without_a_spread_is_exactly_zero(scores: list[float]) -> None:
    advantages = grpo(torch.tensor(scores), torch.zeros(len(scores), dtype=torch.int64))
    assert advantages.tolist() == [0.0] * len(scores)


def test_the_best_answer_of_a_group_is_not_the_best_of_another() -> None:
    alone = grpo(torch.tensor([0.2, 0.4]), torch.tensor([0, 0]))
    beside = grpo(torch.tensor([0.2, 0.9, 0.4, 0.8]), torch.tensor([0, 1, 0, 1]))
    torch.testing.assert_close(beside[[0, 2]], alone, rtol=0, atol=0)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 6)), min_size=1, max_size=24))
def test_advantages_of_a_group_have_mean_zero_and_unit_spread(answers: list[tuple[int, int]]) -> None:
    groups = torch.tensor([group for group, _ in answers]).unique(return_inverse=True)[1]
    scores = torch.tensor([score / 6 for _, score in answers], dtype=torch.float64)

    advantages = grpo(scores, groups)

    for group in groups.unique():
        own = advantages[groups == group]
        assert own.mean().abs() < 1e-9
        flat = len(scores[groups == group].unique()) == 1
        assert (own == 0).all() if flat else abs(float(own.std()) - 1) < 1e-4
