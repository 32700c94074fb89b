"""Behaviour weights, rejection and divergence metrics: plain loops, masks, merging, invalid bounds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from helpers import reference
from helpers.tokens import Ragged, bools, tensor
from hooktrainer.algorithms import registry
from hooktrainer.algorithms.criteria import CRITERIA
from hooktrainer.algorithms.divergence import Divergence, divergence_sums
from hooktrainer.algorithms.rejection import rejection
from hooktrainer.errors import ConfigError

SEEDS = range(4)
BANDS = {"tis_token": (0.6, 1.2), "mask_geometric": (0.9, 1.1)}


def weigh(name: str, log_ratio: Tensor, mask: Tensor, **bounds: float) -> Tensor:
    inputs = {"log_ratio": log_ratio, "mask": mask}
    found: Tensor = registry.bind(name, registry.BEHAVIOUR_WEIGHTS, inputs=inputs, args=bounds)(inputs)
    return found


def measured(log_ratio: Tensor, mask: Tensor, weights: Tensor | None = None) -> Divergence:
    return Divergence(**{key: value.item() for key, value in divergence_sums(log_ratio, mask, weights).items()})


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", registry.BEHAVIOUR_WEIGHTS)
def test_behaviour_weight_matches_the_reference_formula(name: str, seed: int) -> None:
    batch = Ragged.of(seed)
    low, high = BANDS.get(name, (0.5, 1.5))
    mask, log_ratio = batch.mask.tolist(), batch.log_ratio.tolist()
    places = reference.rows(mask)

    found = weigh(name, batch.log_ratio, batch.mask, low=low, high=high)

    expected = reference.table(mask, lambda i, t: reference.weight(name, log_ratio[i], places[i], t, low, high))
    torch.testing.assert_close(found, tensor(expected), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", registry.BEHAVIOUR_WEIGHTS)
def test_behaviour_weight_has_no_gradient_and_ignores_masked_tokens(name: str) -> None:
    batch = Ragged.of(4)
    found = weigh(name, batch.log_ratio.requires_grad_(), batch.mask)
    assert not found.requires_grad
    for hidden in (math.nan, math.inf, -3.0):
        wild = batch.log_ratio.detach().masked_fill(~batch.mask, hidden)
        torch.testing.assert_close(weigh(name, wild, batch.mask), found, rtol=0, atol=0)


@pytest.mark.parametrize("name", registry.BEHAVIOUR_WEIGHTS)
def test_behaviour_weight_is_1_if_sampler_and_proximal_policy_are_equal(name: str) -> None:
    batch = Ragged.of(1, spread=0.0)
    assert weigh(name, batch.log_ratio, batch.mask).tolist() == batch.mask.double().tolist()


@pytest.mark.parametrize("name", registry.BEHAVIOUR_WEIGHTS)
@settings(max_examples=25)
@given(order=st.permutations(range(7)), more=st.integers(0, 3))
def test_behaviour_weights_do_not_depend_on_row_order_or_padding(name: str, order: list[int], more: int) -> None:
    batch = Ragged.of(2)
    changed = batch.map(lambda values: values[order]).wider(more)
    before = weigh(name, batch.log_ratio, batch.mask)
    after = weigh(name, changed.log_ratio, changed.mask)
    torch.testing.assert_close(after[:, : batch.mask.shape[1]], before[order], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", registry.BEHAVIOUR_WEIGHTS)
def test_large_ratios_are_clamped_and_batches_without_tokens_have_weight_0(name: str) -> None:
    far = weigh(name, tensor([[30.0, 30.0]]), bools([[1, 1]]), low=0.0, high=1e12)
    assert far.tolist() == [[1.0 if name.startswith("mask") else pytest.approx(math.exp(20))] * 2]
    assert weigh(name, torch.full((2, 3), math.nan), torch.zeros(2, 3).bool()).tolist() == [[0.0] * 3] * 2
    assert weigh(name, torch.zeros(0, 0), torch.zeros(0, 0).bool()).shape == (0, 0)


@pytest.mark.parametrize("name", registry.BEHAVIOUR_WEIGHTS)
@pytest.mark.parametrize(("low", "high"), [(2.0, 0.5), (-0.1, 2.0)])
def test_invalid_bounds_are_an_error(name: str, low: float, high: float) -> None:
    with pytest.raises(ConfigError, match=f"0 <= low <= high, found low {low} and high {high}"):
        weigh(name, tensor([[0.0]]), bools([[1]]), low=low, high=high)


@pytest.mark.parametrize("name", ["icepop", "mis_token", "mis_sequence", "mask_geometric", "mask_product"])
def test_bounds_are_inclusive(name: str) -> None:
    edge = tensor([[0.0]])
    assert weigh(name, edge, bools([[1]]), low=1.0, high=1.0).item() == 1.0
    assert weigh(name, edge, bools([[1]]), low=1.0 + 1e-12, high=2.0).item() == 0.0


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("criterion", CRITERIA)
def test_rejection_criterion_matches_the_reference_formula(criterion: str, seed: int) -> None:
    batch = Ragged.of(seed)
    bound: Any = [0.8, 1.25] if criterion.endswith("k1") else 0.05
    mask, log_ratio = batch.mask.tolist(), batch.log_ratio.tolist()
    places = reference.rows(mask)

    keep = rejection(batch.log_ratio, batch.mask, {criterion: bound})

    expected = reference.table(mask, lambda i, t: reference.passes(criterion, bound, log_ratio[i], places[i], t))
    assert keep.tolist() == [[bool(value) for value in row] for row in expected]


def test_token_is_kept_only_if_all_criteria_pass() -> None:
    batch = Ragged.of(1)
    some: list[Mapping[str, Any]] = [{"token_k1": [0.8, 1.4]}, {"seq_mean_k3": 0.05}, {"seq_max_k2": 0.2}]
    each = [rejection(batch.log_ratio, batch.mask, one) for one in some]
    together = rejection(batch.log_ratio, batch.mask, {key: bound for one in some for key, bound in one.items()})
    assert torch.equal(together, each[0] & each[1] & each[2])
    assert not any(torch.equal(one, batch.mask) for one in each)
    assert together.any()
    assert torch.equal(rejection(batch.log_ratio, batch.mask, {}), batch.mask)


def test_bounds_of_token_k1_are_inclusive_and_apply_to_the_ratio() -> None:
    log_ratio, mask = tensor([[0.0, math.log(4.0), -math.log(4.0)]]), bools([[1, 1, 1]])
    assert rejection(log_ratio, mask, {"token_k1": [1.0, 5.0]}).tolist() == [[True, True, False]]
    assert rejection(tensor([[0.5]]), bools([[1]]), {"token_k2": 0.125}).tolist() == [[True]]


@pytest.mark.parametrize(
    ("criteria", "message"),
    [
        (
            {"seq_max_k1": [0.5, 2]},
            "unknown criterion 'seq_max_k1'; expected one of .*seq_max_k2, seq_max_k3. Did you mean 'seq_",
        ),
        ({"token_k1": 2.0}, r"the bounds \[low, high\] of the ratio, 0 <= low <= high, found 2.0"),
        ({"token_k1": [2, 0.5]}, r"found \[2, 0.5\]"),
        ({"seq_sum_k3": [0, 1]}, r"an upper limit, a number of at least 0, found \[0, 1\]"),
        ({"seq_sum_k3": -1}, "at least 0, found -1"),
        ({"seq_sum_k3": math.inf}, "found inf"),
    ],
)
def test_criterion_with_an_invalid_bound_is_an_error(criteria: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        rejection(tensor([[0.0]]), bools([[1]]), criteria)


@pytest.mark.parametrize("seed", SEEDS)
def test_divergence_matches_the_reference_formulas(seed: int) -> None:
    batch = Ragged.of(seed)
    weights = weigh("icepop", batch.log_ratio, batch.mask)
    found = measured(batch.log_ratio, batch.mask, weights)

    flat, applied = batch.log_ratio[batch.mask].tolist(), weights[batch.mask].tolist()
    count = len(flat)
    assert found.tokens == count
    assert found.effective_sample_size == pytest.approx(sum(applied) ** 2 / count / sum(w * w for w in applied))
    assert 1 / count <= found.effective_sample_size <= 1
    assert found.chi2 == pytest.approx(sum(math.exp(2 * x) for x in flat) / count - 1)
    assert found.k1 == pytest.approx(-sum(flat) / count)
    assert found.k3 == pytest.approx(sum(reference.divergence(3, x) for x in flat) / count)
    assert found.mean_absolute == pytest.approx(sum(map(abs, flat)) / count)


@given(cut=st.integers(0, 7), seed=st.sampled_from(SEEDS))
def test_divergence_of_merged_parts_equals_that_of_the_whole(cut: int, seed: int) -> None:
    batch = Ragged.of(seed)
    parts = [divergence_sums(batch.log_ratio[part], batch.mask[part]) for part in (slice(cut), slice(cut, 7))]
    merged = Divergence(**{key: float(parts[0][key] + parts[1][key]) for key in parts[0]})
    whole = measured(batch.log_ratio, batch.mask)
    for key in ("effective_sample_size", "chi2", "k1", "k3", "mean_absolute", "tokens"):
        assert getattr(merged, key) == pytest.approx(getattr(whole, key), rel=1e-12)


def test_divergence_is_0_on_policy_and_every_token_counts() -> None:
    batch = Ragged.of(0, spread=0.0)
    found = measured(batch.log_ratio, batch.mask)
    assert (found.chi2, found.k1, found.k3, found.mean_absolute, found.clamped) == (0, 0, 0, 0, 0)
    assert found.effective_sample_size == 1.0


def test_divergence_without_weights_or_tokens_has_the_documented_values() -> None:
    assert measured(tensor([[0.1, 0.2]]), bools([[1, 1]]), tensor([[0.0, 0.0]])).effective_sample_size == 0.0
    none = measured(torch.full((1, 2), math.nan), bools([[0, 0]]))
    assert none == Divergence()
    assert none.effective_sample_size == 0.0
    assert all(math.isnan(value) for value in (none.chi2, none.k1, none.k3, none.mean_absolute))


def test_tokens_with_a_clamped_exponent_are_counted() -> None:
    found = measured(tensor([[20.0, 20.1, -21.0, 0.0, math.nan]]), bools([[1, 1, 1, 1, 0]]))
    assert (found.clamped, found.tokens) == (2, 4)
    assert found.squared_ratio == pytest.approx(2 * math.exp(40) + math.exp(-40) + 1)
