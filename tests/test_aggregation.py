"""Loss aggregation: right values, and the same ones for every split of the batch."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hooktrainer.algorithms import registry
from hooktrainer.algorithms.aggregation import Totals
from hooktrainer.errors import ConfigError

NAN = math.nan
LOSS = [[1, 2, 3, 4], [-1, 5, NAN, NAN], [6, NAN, NAN, NAN], [0.5, NAN, 1.5, 2], [NAN, NAN, NAN, NAN]]
MASK = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0], [1, 0, 1, 1], [0, 0, 0, 0]]).bool()
TOTALS = Totals(tokens=10, sequences=4)
EXPECTED = {"token-mean": 2.4, "seq-mean-token-mean": 2.95833333, "seq-mean-token-sum": 6.0}


def test_every_mode_has_a_vector() -> None:
    assert EXPECTED.keys() == registry.LOSS_AGG_MODES.keys()


@pytest.mark.parametrize("mode", EXPECTED)
def test_a_ragged_mask_with_an_empty_answer(mode: str) -> None:
    aggregate = registry.resolve(mode, registry.LOSS_AGG_MODES)
    found = aggregate(torch.tensor(LOSS, dtype=torch.float64), MASK, TOTALS)
    assert found.item() == pytest.approx(EXPECTED[mode], rel=1e-7)


@pytest.mark.parametrize("mode", EXPECTED)
@given(cuts=st.lists(st.integers(0, 5), max_size=4))
def test_no_split_changes_loss_or_gradient(mode: str, cuts: list[int]) -> None:
    aggregate = registry.resolve(mode, registry.LOSS_AGG_MODES)
    whole = torch.tensor(LOSS, dtype=torch.float64).nan_to_num(0.0).requires_grad_()
    parts = whole.detach().clone().requires_grad_()

    aggregate(whole, MASK, TOTALS).backward()
    edges = [0, *sorted(cuts), 5]
    pieces = [slice(start, end) for start, end in itertools.pairwise(edges)]
    total = sum(aggregate(parts[piece], MASK[piece], TOTALS) for piece in pieces)
    total.backward()

    assert total.item() == pytest.approx(EXPECTED[mode], rel=1e-7)
    torch.testing.assert_close(parts.grad, whole.grad, rtol=0, atol=1e-12)


@pytest.mark.parametrize("mode", EXPECTED)
def test_a_batch_without_a_token_is_zero(mode: str) -> None:
    aggregate = registry.resolve(mode, registry.LOSS_AGG_MODES)
    assert aggregate(torch.full((2, 3), NAN), torch.zeros(2, 3).bool(), Totals(tokens=0, sequences=0)).item() == 0.0


def test_an_unknown_name_gets_a_suggestion() -> None:
    with pytest.raises(ConfigError, match=r"it takes token-mean, .* Did you mean 'token-mean'\?"):
        registry.check("token-men", registry.LOSS_AGG_MODES)


def test_a_function_of_the_user_is_imported_by_its_path() -> None:
    assert registry.resolve("math:hypot", registry.LOSS_AGG_MODES) is math.hypot


@pytest.mark.parametrize(("name", "message"), [("math:nothing", "cannot be imported"), ("math:pi", "is a float")])
def test_a_path_without_a_function_is_an_error(name: str, message: str) -> None:
    registry.check(name, registry.LOSS_AGG_MODES)
    with pytest.raises(ConfigError, match=message):
        registry.resolve(name, registry.LOSS_AGG_MODES)
