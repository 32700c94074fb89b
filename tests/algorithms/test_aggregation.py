"""Loss aggregation: the same loss and gradient for every split into micro-batches and ranks."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, distributed, multiprocessing

from helpers import reference
from helpers.tokens import Ragged, bools, ints, tensor, totals_of
from hooktrainer.algorithms import registry
from hooktrainer.algorithms.aggregation import Totals, seq_mean_token_sum_norm
from hooktrainer.algorithms.returns import whiten
from hooktrainer.errors import ConfigError

MODES = list(registry.LOSS_AGG_MODES)
INPUTS = ("values", "mask", "groups", "totals", "max_response_length")
ROWS, LONGEST = 7, 11
SEEDS = range(4)


def aggregated(mode: str, values: Tensor, batch: Ragged, part: slice, totals: Totals) -> Tensor:
    available = {"mask": batch.mask[part], "groups": batch.groups[part], "totals": totals}
    found: Tensor = registry.bind(mode, registry.LOSS_AGG_MODES, inputs=INPUTS)(
        available | {"values": values[part], "max_response_length": LONGEST}
    )
    return found


def slices(cuts: list[int]) -> list[slice]:
    return [slice(*edges) for edges in itertools.pairwise([0, *sorted(cuts), ROWS])]


def whole(mode: str, batch: Ragged) -> tuple[float, Tensor]:
    """Return the loss and gradient of the whole batch."""
    leaf, everything = batch.advantages.clone().requires_grad_(), slice(len(batch.groups))
    loss = aggregated(mode, leaf, batch, everything, totals_of(batch.mask, batch.groups))
    loss.backward()
    assert leaf.grad is not None
    return loss.item(), leaf.grad


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("mode", MODES)
def test_aggregation_mode_matches_the_reference_formula_and_gradient(mode: str, seed: int) -> None:
    batch = Ragged.of(seed)
    loss, gradient = whole(mode, batch)

    plain = (batch.advantages.tolist(), batch.mask.tolist(), batch.groups.tolist())
    assert loss == pytest.approx(reference.aggregated(mode, *plain, LONGEST), rel=1e-12)
    assert (gradient[~batch.mask] == 0).all()
    totals, shown = totals_of(batch.mask, batch.groups), torch.nan_to_num(batch.advantages).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: aggregated(mode, x, batch, slice(ROWS), totals), (shown,))


@pytest.mark.parametrize("mode", MODES)
@settings(deadline=None)
@given(cuts=st.lists(st.integers(0, ROWS), max_size=5), seed=st.sampled_from(SEEDS))
def test_loss_and_gradient_do_not_depend_on_the_split_into_micro_batches(mode: str, cuts: list[int], seed: int) -> None:
    batch = Ragged.of(seed)
    loss, gradient = whole(mode, batch)

    parts = slices(cuts)
    totals = totals_of(batch.mask, batch.groups)
    leaf = batch.advantages.clone().requires_grad_()
    losses = [aggregated(mode, leaf, batch, part, totals) for part in parts]
    for one in losses:
        one.backward()

    assert sum(one.item() for one in losses) == pytest.approx(loss, rel=0, abs=1e-12)
    torch.testing.assert_close(leaf.grad, gradient, rtol=0, atol=1e-12)


@pytest.mark.parametrize("mode", MODES)
@settings(deadline=None, max_examples=25)
@given(order=st.permutations(range(ROWS)), more=st.integers(0, 4), seed=st.sampled_from(SEEDS))
def test_loss_does_not_depend_on_row_order_or_padding(mode: str, order: list[int], more: int, seed: int) -> None:
    batch = Ragged.of(seed)
    changed = batch.map(lambda values: values[order]).wider(more)
    loss, gradient = whole(mode, batch)
    other, its = whole(mode, changed)
    assert other == pytest.approx(loss, rel=0, abs=1e-12)
    torch.testing.assert_close(its[:, : batch.mask.shape[1]], gradient[order], rtol=0, atol=1e-12)


@pytest.mark.parametrize("mode", MODES)
def test_rejected_tokens_still_count_in_the_denominator(mode: str) -> None:
    batch = Ragged.of(0)
    keep = batch.mask & (torch.arange(batch.mask.shape[1]) != 2)
    totals = totals_of(batch.mask, batch.groups)
    rejected = torch.where(keep, batch.advantages, 0.0)
    leaf = batch.advantages.clone().requires_grad_()

    loss = aggregated(mode, torch.where(keep, leaf, 0.0), batch, slice(ROWS), totals)
    loss.backward()

    plain = (rejected.tolist(), batch.mask.tolist(), batch.groups.tolist())
    assert loss.item() == pytest.approx(reference.aggregated(mode, *plain, LONGEST), rel=1e-12)
    torch.testing.assert_close(leaf.grad, torch.where(keep, whole(mode, batch)[1], 0.0), rtol=0, atol=1e-15)


@pytest.mark.parametrize("mode", MODES)
def test_batch_without_tokens_has_loss_and_gradient_0(mode: str) -> None:
    batch = Ragged.of(0).map(lambda values: torch.zeros_like(values) if values.dtype is torch.bool else values)
    loss, gradient = whole(mode, batch)
    assert loss == 0.0
    assert (gradient == 0).all()


def without_a_token(answers: int) -> Ragged:
    batch = Ragged.of(9).map(lambda values: values[:answers])
    return attrs.evolve(batch, mask=torch.zeros_like(batch.mask))


def halves(seed: int) -> tuple[Ragged, Ragged]:
    """Two ranks that have answers to the same prompts."""
    batch = Ragged.of(seed)
    return batch.map(lambda values: values[:3]), batch.map(lambda values: values[3:])


SHARES = {
    "a rank without a token": (Ragged.of(5), without_a_token(answers=4)),
    "a rank without an answer": (without_a_token(answers=0), Ragged.of(3)),
    "ranks that share prompts": halves(4),
}


def _rank(rank: int, directory: str) -> None:
    """Save the loss and gradient of one of two processes, summed over both as a learner does."""
    distributed.init_process_group("gloo", init_method=f"file://{directory}/store", rank=rank, world_size=2)

    def add_up(values: Tensor) -> Tensor:
        values = values.detach().clone()
        distributed.all_reduce(values)
        return values

    found: dict[str, Any] = {}
    for name, shares in SHARES.items():
        own = shares[rank]
        totals = totals_of(own.mask, own.groups, num_groups=3, reduce=add_up)
        found[f"{name}, totals"] = attrs.astuple(totals)
        found[f"{name}, whitened"] = whiten(own.advantages, own.mask, reduce=add_up)
        for mode in MODES:
            leaf = own.advantages.clone().requires_grad_()
            loss = aggregated(mode, leaf, own, slice(ROWS), totals)
            loss.backward()
            found[f"{name}, {mode}"] = (add_up(loss).item(), leaf.grad)
    torch.save(found, f"{directory}/{rank}.pt")
    distributed.destroy_process_group()


@pytest.mark.slow
def test_two_ranks_have_the_loss_and_gradient_of_one_rank(tmp_path: Path) -> None:
    multiprocessing.spawn(_rank, args=(str(tmp_path),), nprocs=2)

    found = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    for name, (first, second) in SHARES.items():
        pairs = {key.name: (getattr(first, key.name), getattr(second, key.name)) for key in attrs.fields(Ragged)}
        both = Ragged(**{key: torch.cat(pair) for key, pair in pairs.items()})
        totals = attrs.astuple(totals_of(both.mask, both.groups, num_groups=3))
        whitened = torch.cat([own[f"{name}, whitened"] for own in found])
        torch.testing.assert_close(whitened, whiten(both.advantages, both.mask), rtol=0, atol=1e-12)
        for mode in MODES:
            loss, gradient = whole(mode, both)
            assert [own[f"{name}, {mode}"][0] for own in found] == pytest.approx([loss] * 2, rel=0, abs=1e-12)
            its = torch.cat([own[f"{name}, {mode}"][1] for own in found])
            torch.testing.assert_close(its, gradient, rtol=0, atol=1e-12)
        assert [own[f"{name}, totals"] for own in found] == [totals] * 2


def test_totals_count_only_answers_with_tokens() -> None:
    mask, groups = bools([[1, 1], [0, 0], [1, 0], [0, 0]]), ints([0, 0, 2, 1])
    totals = totals_of(mask, groups)
    assert totals == Totals(tokens=3, sequences=2, prompt_tokens=(2, 0, 1))
    assert totals.prompts == 2
    assert totals_of(mask[:0], groups[:0]) == Totals(0, 0)


def test_max_response_length_below_1_is_an_error() -> None:
    with pytest.raises(ConfigError, match="at least 1 token, found 0"):
        seq_mean_token_sum_norm(tensor([[1.0]]), bools([[1]]), Totals(1, 1), 0)
    assert math.isclose(seq_mean_token_sum_norm(tensor([[1.0]]), bools([[1]]), Totals(1, 1), 4).item(), 0.25)
