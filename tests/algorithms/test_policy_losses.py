"""Policy losses: compared with plain loops, their gradients with finite differences and with their definition."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from helpers import reference
from helpers.tokens import Ragged, bools, slope, tensor
from hooktrainer.algorithms import registry
from hooktrainer.algorithms.policy_losses import TokenLoss, cispo, decoupled_ppo, gspo, ppo_clip
from hooktrainer.errors import ConfigError

INPUTS = ("logprobs", "proximal", "behaviour", "advantages", "mask")
MY_LOSSES = Path(__file__).parents[2] / "examples" / "my_losses.py"
USERS = [f"{MY_LOSSES}:{name}" for name in ("sapo", "dppo_binary_tv", "m2po", "opsm")]
NAMES = [*registry.POLICY_LOSSES, *USERS]
SEEDS = range(4)
LOW, HIGH, C, CAP, LARGEST = 0.15, 0.25, 1.6, 1.3, 1.2


def short(name: str) -> str:
    return name.rpartition(":")[2]


def bound(name: str, **args: object) -> Callable[[dict[str, Any]], TokenLoss]:
    return registry.bind(name, registry.POLICY_LOSSES, inputs=INPUTS, args=args)


def given_of(batch: Ragged) -> dict[str, Tensor]:
    return {name: batch.inputs[name] for name in INPUTS}


def shown(batch: Ragged) -> dict[str, Tensor]:
    return {name: torch.nan_to_num(value) for name, value in given_of(batch).items()} | {"mask": batch.mask}


def expected(name: str, batch: Ragged) -> Any:
    logprobs, proximal, behaviour, advantages, mask = (given_of(batch)[key].tolist() for key in INPUTS)

    def of(i: int, t: int) -> float:
        ratio, gain = reference.exp(logprobs[i][t] - proximal[i][t]), advantages[i][t]
        if name == "gspo":
            places = reference.rows(mask)[i]
            ratio = reference.exp(reference.log_mean(logprobs, proximal, places, i))
            return reference.clipped(ratio, gain, LOW, HIGH)
        if name == "cispo":
            return -min(ratio, LARGEST) * gain * logprobs[i][t]
        loss = reference.clipped(ratio, gain, LOW, HIGH, C)
        weight = min(reference.exp(proximal[i][t] - behaviour[i][t]), CAP)
        return weight * loss if name == "decoupled_ppo" else loss

    return reference.table(mask, of)


CONFIGURED: dict[str, Any] = {
    "ppo_clip": partial(ppo_clip, clip_ratio_low=LOW, clip_ratio_high=HIGH, clip_ratio_c=C),
    "gspo": partial(gspo, clip_ratio_low=LOW, clip_ratio_high=HIGH),
    "cispo": partial(cispo, cispo_max_ratio=LARGEST),
    "decoupled_ppo": partial(
        decoupled_ppo, clip_ratio_low=LOW, clip_ratio_high=HIGH, clip_ratio_c=C, behaviour_weight_cap=CAP
    ),
}


def called(function: Any, available: dict[str, Any]) -> Any:
    """Call the loss with the inputs that it requires."""
    asked = inspect.signature(function).parameters
    return function(**{key: value for key, value in available.items() if key in asked})


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", CONFIGURED)
def test_policy_loss_matches_the_reference_formula(name: str, seed: int) -> None:
    batch = Ragged.of(seed)
    found = called(CONFIGURED[name], given_of(batch)).loss
    torch.testing.assert_close(found, tensor(expected(name, batch)), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", ["ppo_clip", "decoupled_ppo", *USERS], ids=short)
def test_gradient_of_losses_without_stop_gradient_matches_their_value(name: str, seed: int) -> None:
    inputs = shown(Ragged.of(seed))

    def loss(current: Tensor) -> Tensor:
        return bound(name)(inputs | {"logprobs": current}).loss

    assert torch.autograd.gradcheck(loss, (inputs["logprobs"].clone().requires_grad_(),))


@pytest.mark.parametrize("seed", SEEDS)
def test_gradient_of_gspo_equals_that_of_the_sequence_ratio(seed: int) -> None:
    batch = Ragged.of(seed)
    inputs, lengths = shown(batch), batch.mask.sum(dim=1, keepdim=True).clamp(min=1)
    gain = inputs["advantages"][:, :1]

    def whole(current: Tensor) -> Tensor:
        """Return the loss of an answer by its definition, with one advantage and without stop-gradient."""
        log_ratio = torch.where(batch.mask, current - inputs["proximal"], 0.0)
        ratio = (log_ratio.sum(dim=1, keepdim=True) / lengths).exp()
        return torch.maximum(-gain * ratio, -gain * ratio.clamp(1 - LOW, 1 + HIGH)) * batch.mask.any(dim=1)[:, None]

    def of_tokens(current: Tensor) -> Tensor:
        return CONFIGURED["gspo"](current, inputs["proximal"], gain, batch.mask).loss / lengths

    assert torch.autograd.gradcheck(whole, (inputs["logprobs"].clone().requires_grad_(),))
    torch.testing.assert_close(slope(of_tokens, inputs["logprobs"]), slope(whole, inputs["logprobs"]))


@pytest.mark.parametrize("seed", SEEDS)
def test_gradient_of_cispo_is_that_of_the_weighted_log_probability(seed: int) -> None:
    batch = Ragged.of(seed)
    inputs = given_of(batch)
    ratio = (batch.logprobs - batch.proximal).exp().clamp(max=LARGEST)
    found = slope(lambda x: called(CONFIGURED["cispo"], inputs | {"logprobs": x}).loss, batch.logprobs)
    torch.testing.assert_close(found, torch.where(batch.mask, -ratio * batch.advantages, 0.0))


@pytest.mark.parametrize("name", NAMES, ids=short)
@pytest.mark.parametrize("hidden", [math.nan, math.inf, -7.0])
def test_masked_tokens_change_neither_loss_nor_gradient_nor_stats(name: str, hidden: float) -> None:
    batch = Ragged.of(3)
    wild = {key: value.masked_fill(~batch.mask, hidden) for key, value in shown(batch).items() if key != "mask"}

    pair = []
    for inputs in (shown(batch), wild | {"mask": batch.mask}):
        leaf = inputs["logprobs"].clone().requires_grad_()
        result = bound(name)(inputs | {"logprobs": leaf})
        result.loss.sum().backward()
        assert leaf.grad is not None
        assert not any(value.requires_grad for value in result.stats.values())
        for value in (result.loss, leaf.grad, *result.stats.values()):
            assert value.shape == batch.mask.shape
            assert (value[~batch.mask] == 0).all()
        pair.append((result.loss.detach(), leaf.grad, dict(result.stats)))
    torch.testing.assert_close(*pair, rtol=0, atol=0)


@pytest.mark.parametrize("name", NAMES, ids=short)
@settings(max_examples=25)
@given(order=st.permutations(range(7)), more=st.integers(0, 3))
def test_policy_loss_does_not_depend_on_row_order_or_padding(name: str, order: list[int], more: int) -> None:
    batch = Ragged.of(1)
    changed = batch.map(lambda values: values[order]).wider(more)
    before, after = bound(name)(given_of(batch)).loss, bound(name)(given_of(changed)).loss
    torch.testing.assert_close(after[:, : batch.mask.shape[1]], before[order], rtol=1e-12, atol=1e-12)
    assert (after[:, batch.mask.shape[1] :] == 0).all()


@pytest.mark.parametrize("name", NAMES, ids=short)
def test_on_policy_loss_clips_nothing_and_has_the_gradient_of_reinforce(name: str) -> None:
    batch = Ragged.of(2, spread=0.0)
    inputs = given_of(batch)
    result = bound(name)(inputs)
    gradient = slope(lambda x: bound(name)(inputs | {"logprobs": x}).loss, batch.logprobs)

    torch.testing.assert_close(gradient, torch.where(batch.mask, -batch.advantages, 0.0))
    for key, value in result.stats.items():
        assert value.sum() == (batch.mask.sum() if key == "behaviour_weight" else 0), key


def test_behaviour_weight_of_decoupled_ppo_is_capped_and_has_no_gradient() -> None:
    proximal, behaviour, mask = tensor([[-1.0, -1.0]]), tensor([[-4.0, -0.5]]).requires_grad_(), bools([[1, 1]])
    result = decoupled_ppo(proximal, proximal, behaviour, tensor([[1.0, 1.0]]), mask, behaviour_weight_cap=2.0)
    assert not result.loss.requires_grad
    assert result.stats["behaviour_weight"].tolist() == [[2.0, math.exp(-0.5)]]
    assert result.stats["behaviour_weight_capfrac"].tolist() == [[1.0, 0.0]]


def test_advantage_per_answer_is_applied_to_all_its_tokens() -> None:
    zeros, mask = torch.zeros(2, 3), torch.ones(2, 3, dtype=torch.bool)
    for name in NAMES:
        given_rows = {"logprobs": zeros, "proximal": zeros, "behaviour": zeros, "mask": mask}
        once = bound(name)(given_rows | {"advantages": torch.tensor([[1.0], [-2.0]])}).loss
        each = bound(name)(given_rows | {"advantages": torch.tensor([[1.0] * 3, [-2.0] * 3])}).loss
        assert once.tolist() == each.tolist()


@pytest.mark.parametrize("name", ["ppo_clip", "gspo", "decoupled_ppo"])
@pytest.mark.parametrize("drift", [25.0, -25.0])
def test_extreme_ratio_is_clamped_without_a_gradient_and_counted(name: str, drift: float) -> None:
    logprobs, others, mask = tensor([[-1.0]]), tensor([[-1.0 - drift]]), bools([[1]])
    inputs = {"proximal": others, "behaviour": others, "advantages": tensor([[-1.0]]), "mask": mask}

    result = bound(name)(inputs | {"logprobs": logprobs})

    assert result.loss.item() == pytest.approx(math.exp(20.0) if drift > 0 else {"gspo": 0.9997}.get(name, 0.8))
    assert slope(lambda x: bound(name)(inputs | {"logprobs": x}).loss, logprobs).item() == 0.0
    assert result.stats["pg_clampfrac"].item() == 1.0


@pytest.mark.parametrize(
    ("name", "args", "message"),
    [
        ("ppo_clip", {"clip_ratio_low": -0.1}, "0 <= clip_ratio_low < 1, found -0.1"),
        ("gspo", {"clip_ratio_high": -0.1}, "clip_ratio_high >= 0, found -0.1"),
        ("ppo_clip", {"clip_ratio_c": 1.0}, "clip_ratio_c > 1, found 1.0"),
        ("cispo", {"cispo_max_ratio": 0.0}, "cispo_max_ratio > 0, found 0.0"),
        ("cispo", {"cispo_min_ratio": 6.0}, "cispo_min_ratio <= cispo_max_ratio, found 6.0"),
        ("decoupled_ppo", {"behaviour_weight_cap": 0.0}, "behaviour_weight_cap > 0, found 0.0"),
    ],
)
def test_invalid_bounds_are_an_error(name: str, args: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        bound(name, **args)(given_of(Ragged.of(0)))


@pytest.mark.parametrize("name", NAMES, ids=short)
def test_batch_without_tokens_has_loss_0(name: str) -> None:
    empty = {key: torch.zeros(0, 0) for key in INPUTS} | {"mask": torch.zeros(0, 0, dtype=torch.bool)}
    assert bound(name)(empty).loss.shape == (0, 0)
    hidden = {key: torch.full((2, 3), math.nan) for key in INPUTS} | {"mask": torch.zeros(2, 3, dtype=torch.bool)}
    assert (bound(name)(hidden).loss == 0).all()
