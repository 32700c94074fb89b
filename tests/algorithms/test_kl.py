"""Divergence from the reference and the log-linear proximal policy: loops, exact expectations, masks, bad values."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from helpers import reference
from helpers.tokens import Ragged, bools, ints, tensor
from hooktrainer.algorithms.kl import ESTIMATORS, kl
from hooktrainer.algorithms.proximal import log_linear
from hooktrainer.algorithms.shaping import overlong_penalty
from hooktrainer.errors import ConfigError

SEEDS = range(4)


def policies(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Logits over five tokens: current policy (with a gradient), reference, sampler."""
    random = torch.Generator().manual_seed(seed)
    current, other, sampler = torch.randn(3, 5, generator=random, dtype=torch.float64)
    return current.requires_grad_(), other.log_softmax(0), sampler.log_softmax(0)


def gradient(value: Tensor, at: Tensor) -> Tensor:
    return torch.autograd.grad(value, at, retain_graph=True)[0]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", [1, 2, 3])
def test_kl_estimator_matches_the_reference_formula_and_gradient(kind: int, seed: int) -> None:
    batch = Ragged.of(seed)
    mask, drift = batch.mask.tolist(), (batch.proximal - batch.logprobs).tolist()

    found = kl(batch.logprobs, batch.proximal, batch.mask, estimator=f"k{kind}")

    sign = -1 if kind == 1 else 1
    expected = reference.table(mask, lambda i, t: sign * reference.divergence(kind, drift[i][t]))
    torch.testing.assert_close(found, tensor(expected), rtol=1e-12, atol=1e-12)
    shown, other = (torch.nan_to_num(values) for values in (batch.logprobs, batch.proximal))
    assert torch.autograd.gradcheck(lambda x: kl(x, other, batch.mask, estimator=f"k{kind}"), (shown.requires_grad_(),))


@pytest.mark.parametrize("seed", SEEDS)
def test_mean_gradient_on_policy_equals_that_of_the_exact_divergence(seed: int) -> None:
    logits, other, _ = policies(seed)
    policy, everything = logits.log_softmax(0), torch.ones(5, dtype=torch.bool)
    weights = policy.detach().exp()
    forward = gradient((policy.exp() * (policy - other)).sum(), logits)
    backward = gradient((other.exp() * (other - policy)).sum(), logits)
    rights = {"k1": torch.zeros(5, dtype=torch.float64), "k2": forward, "k3": backward}

    for estimator in ESTIMATORS:
        policy = logits.log_softmax(0)
        found = gradient((weights * kl(policy, other, everything, estimator=estimator)).sum(), logits)
        torch.testing.assert_close(found, rights[estimator], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_mean_corrected_gradient_off_policy_equals_that_of_the_exact_divergence(estimator: str, seed: int) -> None:
    logits, other, sampler = policies(seed)
    everything = torch.ones(5, dtype=torch.bool)
    policy = logits.log_softmax(0)
    exact = (policy.exp() * (policy - other)).sum()
    right = gradient(exact, logits)

    policy = logits.log_softmax(0)
    mean = (sampler.exp() * kl(policy, other, everything, estimator=estimator, behaviour=sampler)).sum()

    torch.testing.assert_close(gradient(mean, logits), right, rtol=1e-10, atol=1e-12)
    if estimator != "k2":
        assert mean.item() == pytest.approx(exact.item(), rel=1e-12)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("corrected", [False, True])
def test_masked_tokens_change_neither_value_nor_gradient(estimator: str, corrected: bool) -> None:
    batch, found = Ragged.of(3), []
    for hidden in (0.0, math.nan, -math.inf):
        values = [x.masked_fill(~batch.mask, hidden) for x in (batch.logprobs, batch.proximal, batch.behaviour)]
        leaf = values[0].clone().requires_grad_()
        behaviour = values[2] if corrected else None
        value = kl(leaf, values[1], batch.mask, estimator=estimator, behaviour=behaviour)
        value.sum().backward()
        assert leaf.grad is not None
        assert (value[~batch.mask] == 0).all()
        assert (leaf.grad[~batch.mask] == 0).all()
        found.append((value.detach(), leaf.grad))
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=0)
    torch.testing.assert_close(found[2], found[0], rtol=0, atol=0)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_kl_of_equal_policies_is_0(estimator: str) -> None:
    batch = Ragged.of(0)
    assert (kl(batch.logprobs, batch.logprobs, batch.mask, estimator=estimator) == 0).all()


@pytest.mark.parametrize(("estimator", "value"), [("k1", 20.0), ("k2", 200.0), ("k3", math.exp(-20) + 19)])
def test_large_difference_is_clamped_and_has_no_gradient(estimator: str, value: float) -> None:
    logprobs = tensor([[-1.0]]).requires_grad_()
    found = kl(logprobs, tensor([[-90.0]]), bools([[1]]), estimator=estimator)
    assert found.item() == pytest.approx(value)
    assert gradient(found.sum(), logprobs).item() == 0.0


def test_an_unknown_estimator_is_an_error() -> None:
    with pytest.raises(ConfigError, match="unknown estimator 'k33'; expected one of k1, k2, k3. Did you mean 'k3'"):
        kl(tensor([[0.0]]), tensor([[0.0]]), bools([[1]]), estimator="k33")


@pytest.mark.parametrize("seed", SEEDS)
def test_log_linear_matches_the_reference_formula(seed: int) -> None:
    batch = Ragged.of(seed, spread=1.0)
    versions = torch.randint(-1, 9, batch.mask.shape, generator=torch.Generator().manual_seed(seed))

    found = log_linear(
        batch.behaviour,
        batch.logprobs,
        sampler_version=versions,
        proximal_version=5,
        current_version=8,
    )

    def of(i: int, t: int) -> float:
        sampled = versions[i, t].item()
        share = 0.0 if sampled in (8, -1) else min(max((5 - sampled) / (8 - sampled), 0.0), 1.0)
        return float(batch.behaviour[i, t] + share * (batch.logprobs[i, t] - batch.behaviour[i, t]))

    torch.testing.assert_close(
        torch.where(batch.mask, found, 0.0), tensor(reference.table(batch.mask.tolist(), of)), rtol=1e-12, atol=1e-12
    )


def test_log_linear_returns_the_current_policy_exactly_for_its_version() -> None:
    logprobs, behaviour = tensor([[-0.3, -0.7]]), tensor([[-0.1, -9.0]])
    found = log_linear(behaviour, logprobs, sampler_version=ints([0, 4])[None], proximal_version=4, current_version=4)
    assert found.tolist() == [[-0.3, -9.0]]  # the second was sampled from it


def test_proximal_version_above_the_current_version_is_an_error() -> None:
    zero = tensor([[0.0]])
    with pytest.raises(ConfigError, match="the proximal version 5 is above the current one, 4"):
        log_linear(zero, zero, sampler_version=ints([0])[None], proximal_version=5, current_version=4)


def test_overlong_penalty_of_integer_lengths_is_exact_in_float64() -> None:
    found = overlong_penalty(ints([95]), max_length=100, buffer=30)
    assert found.dtype == torch.float64
    assert found.item() == pytest.approx(-25 / 30, rel=1e-15)


@pytest.mark.parametrize(
    ("buffer", "factor", "message"),
    [(0, 1.0, "found buffer 0"), (21, 1.0, "buffer 21 and max_length 20"), (4, -1.0, "factor of at least 0")],
)
def test_invalid_overlong_penalty_options_are_an_error(buffer: int, factor: float, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        overlong_penalty(tensor([3.0]), max_length=20, buffer=buffer, factor=factor)
