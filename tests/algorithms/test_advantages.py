"""Advantages and returns: compared with plain loops, and invalid or missing values."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from helpers import reference
from helpers.tokens import Ragged, bools, ints, tensor
from hooktrainer.algorithms import registry
from hooktrainer.algorithms.advantages import dr_grpo, grpo, maxrl, opo, rloo
from hooktrainer.algorithms.returns import (
    discounted_returns,
    gae,
    reinforce_plus_plus,
    reinforce_plus_plus_baseline,
    token_rewards,
    whiten,
)
from hooktrainer.errors import ConfigError, NonFiniteError, RunError

OF_ANSWERS = ["grpo", "dr_grpo", "rloo", "opo", "maxrl"]
SEEDS = range(4)


def estimate(name: str, inputs: dict[str, Tensor]) -> Any:
    return registry.bind(name, registry.ADVANTAGE_ESTIMATORS, inputs=inputs)(inputs)


def assert_close(found: Tensor, expected: Any) -> None:
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", OF_ANSWERS)
def test_estimator_matches_the_reference_formula(name: str, seed: int) -> None:
    batch = Ragged.of(seed)
    given_lists = (batch.rewards.tolist(), batch.groups.tolist(), batch.inputs["lengths"].tolist())
    assert_close(
        estimate(name, batch.inputs), [reference.advantage(name, *given_lists, i) for i in range(len(batch.groups))]
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_discounted_returns_and_gae_match_the_reference_formulas(seed: int) -> None:
    batch = Ragged.of(seed)
    rewards, values, mask = batch.logprobs, batch.advantages, batch.mask
    plain = (rewards.tolist(), values.tolist(), mask.tolist())

    assert_close(discounted_returns(rewards, mask, gamma=0.9), reference.discounted(plain[0], plain[2], 0.9))
    whitened = reference.whiten(reference.discounted(plain[0], plain[2], 0.9), plain[2])
    assert_close(reinforce_plus_plus(rewards, mask, gamma=0.9), whitened)
    expected = reference.gae(*plain, 0.9, 0.8)
    for found, right in zip(gae(rewards, values, mask, gamma=0.9, lam=0.8), expected, strict=True):
        assert_close(found, right)


@pytest.mark.parametrize("seed", SEEDS)
def test_reinforce_plus_plus_baseline_is_whitened_over_the_tokens_of_all_groups(seed: int) -> None:
    batch = Ragged.of(seed)
    rewards, groups, mask = batch.rewards.tolist(), batch.groups.tolist(), batch.mask.tolist()
    raw = reference.table(mask, lambda i, _: reference.advantage("dr_grpo", rewards, groups, [], i))
    assert_close(reinforce_plus_plus_baseline(batch.rewards, batch.groups, batch.mask), reference.whiten(raw, mask))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("function", [whiten, discounted_returns, lambda x, mask: gae(x, x * 0.5, mask)[1]])
def test_gradients_through_returns_are_correct_and_0_at_masked_tokens(function: Any, seed: int) -> None:
    batch = Ragged.of(seed)
    leaf = batch.advantages.clone().requires_grad_()
    function(leaf, batch.mask).square().sum().backward()
    assert leaf.grad is not None
    assert (leaf.grad[~batch.mask] == 0).all()
    shown = torch.nan_to_num(batch.advantages).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: function(x, batch.mask), (shown,))


@settings(max_examples=25)
@given(st.permutations(range(7)), st.sampled_from(SEEDS), st.integers(0, 3))
def test_advantages_do_not_depend_on_row_order_or_padding(order: list[int], seed: int, more: int) -> None:
    batch = Ragged.of(seed)
    changed = batch.map(lambda values: values[order]).wider(more)
    for name in registry.ADVANTAGE_ESTIMATORS:
        pair = []
        for one in (batch, changed):
            inputs = one.inputs | {"token_rewards": one.logprobs, "values": one.proximal}
            found = estimate(name, inputs)
            pair.append(found if isinstance(found, tuple) else (found,))
        for before, after in zip(*pair, strict=True):
            kept = after if after.dim() == 1 else after[:, : batch.mask.shape[1]]
            torch.testing.assert_close(kept, before[order], rtol=1e-12, atol=1e-12)
            assert after.dim() == 1 or (after[:, batch.mask.shape[1] :] == 0).all()


@pytest.mark.parametrize("name", OF_ANSWERS)
@pytest.mark.parametrize("rewards", [[5.0], [0.1, 0.1, 0.1], [0.0, 0.0], []], ids=str)
def test_advantages_of_one_answer_or_equal_rewards_are_exactly_0(name: str, rewards: list[float]) -> None:
    groups = torch.zeros(len(rewards), dtype=torch.int64)
    inputs = {"rewards": torch.tensor(rewards), "groups": groups, "lengths": groups + 3}
    assert estimate(name, inputs).tolist() == [0.0] * len(rewards)


def test_answers_without_tokens_have_no_weight_in_the_opo_baseline() -> None:
    rewards, groups = tensor([1, 0, 3, 2]), ints([0, 0, 0, 1])
    assert opo(rewards, groups, ints([2, 0, 2, 0])).tolist() == [-1, -2, 1, 0]
    assert opo(rewards, groups, ints([0, 0, 0, 0])).tolist() == [0, 0, 0, 0]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 6)), min_size=1, max_size=24))
def test_grpo_advantages_of_a_group_have_mean_0_and_unit_standard_deviation(answers: list[tuple[int, int]]) -> None:
    groups = torch.tensor([group for group, _ in answers]).unique(return_inverse=True)[1]
    rewards = torch.tensor([score / 6 for _, score in answers], dtype=torch.float64)

    for group in groups.unique():
        own = grpo(rewards, groups)[groups == group]
        flat = len(rewards[groups == group].unique()) == 1
        assert (own == 0).all() if flat else abs(float(own.std()) - 1) < 1e-4
        for estimator in (grpo, dr_grpo, rloo, maxrl):
            assert estimator(rewards, groups)[groups == group].mean().abs() < 1e-9


EQUAL = (
    (1.0, 0.9999999999999999),
    (-3.2e-16, 0.0),
    (sum([0.05] * 20), sum([0.1] * 10), sum([1 / 6] * 6)),
    (0.1 + 0.2, 0.3, 0.3),
    (0.1, 0.1, 0.1),
    (7.0, 7.000000000000001),
)
"""Groups of rewards that differ by rounding only."""


@pytest.mark.parametrize("rewards", EQUAL)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", [*OF_ANSWERS, "reinforce_plus_plus_baseline"])
def test_advantages_of_rewards_that_differ_by_rounding_are_0(
    name: str, dtype: torch.dtype, rewards: tuple[float, ...]
) -> None:
    both = torch.tensor([*rewards, 0.0, 1.0], dtype=dtype)
    groups = torch.tensor([0] * len(rewards) + [1, 1])
    inputs = {"rewards": both, "groups": groups, "lengths": torch.ones_like(groups)}
    inputs["mask"] = torch.ones(len(both), 1, dtype=torch.bool)
    found = estimate(name, inputs).reshape(-1)
    assert found[:-2].tolist() == [0.0] * len(rewards)
    assert found[-2] < 0 < found[-1]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", [*OF_ANSWERS, "reinforce_plus_plus_baseline"])
def test_non_finite_reward_is_an_error_that_names_the_answer(name: str, bad: float) -> None:
    mask = bools([[1, 1]] * 3)
    inputs = {"rewards": tensor([1, bad, 0]), "groups": ints([0, 0, 0]), "lengths": ints([2, 2, 2]), "mask": mask}
    with pytest.raises(NonFiniteError, match=rf"reward of answer 1 is {bad}; .*Check the task's score"):
        estimate(name, inputs)
    with pytest.raises(NonFiniteError, match="answer 1"):
        token_rewards(inputs["rewards"], mask)


@pytest.mark.parametrize("name", ["grpo", "maxrl"])
def test_a_negative_epsilon_is_an_error(name: str) -> None:
    inputs = {"rewards": tensor([1, 0]), "groups": ints([0, 0])}
    bound = registry.bind(name, registry.ADVANTAGE_ESTIMATORS, inputs=inputs, args={"epsilon": -1e-6})
    with pytest.raises(ConfigError, match="epsilon must be a finite number of at least 0, found -1e-06"):
        bound(inputs)


def test_a_negative_reward_under_maxrl_is_an_error() -> None:
    with pytest.raises(RunError, match=r"none may be negative; found -0\.5\. Shift"):
        maxrl(tensor([1, -0.5]), ints([0, 0]))


@pytest.mark.parametrize("mask", [[[0, 0], [0, 0]], [[0, 1], [0, 0]]])
def test_whitening_fewer_than_two_tokens_is_an_error(mask: list[list[int]]) -> None:
    with pytest.raises(RunError, match=r"at least 2 tokens, and the mini-batch has [01]: use a larger"):
        whiten(tensor([[1, 2], [3, 4]]), bools(mask))


def test_reward_is_placed_on_the_last_unmasked_token() -> None:
    mask = bools([[1, 1, 0], [1, 0, 1], [0, 0, 0], [1, 1, 1]])
    placed = token_rewards(tensor([1, 2, 3, 4]), mask)
    assert placed.tolist() == [[0, 1, 0], [0, 0, 2], [0, 0, 0], [0, 0, 4]]
    assert token_rewards(tensor([]), bools([[]])[:0]).shape == (0, 0)


def test_reward_placed_on_a_masked_token_is_an_error() -> None:
    mask = bools([[1, 1, 0], [1, 0, 1]])
    assert token_rewards(tensor([1, 2]), mask, at=ints([0, 2])).tolist() == [[1, 0, 0], [0, 0, 2]]
    for outside in (1, 3, -1):
        with pytest.raises(RunError, match=f"reward of answer 1 is at token {outside}, which has no mask"):
            token_rewards(tensor([1, 2]), mask, at=ints([0, outside]))


def test_gae_uses_bootstrap_values_if_given() -> None:
    rewards, values, mask = tensor([[0, 0, 1]]), tensor([[0.5, 0.25, 9]]), bools([[1, 1, 0]])
    assert gae(rewards, values, mask)[1].tolist() == [[0, 0, 0]]
    assert gae(rewards, values, mask, gamma=0.5, bootstrap=tensor([4]))[1].tolist() == [[1, 2, 0]]


def test_rloo_is_the_difference_from_the_mean_of_the_other_answers() -> None:
    assert rloo(tensor([1, 2, 6]), ints([0, 0, 0])).tolist() == [-3, -1.5, 4.5]
