"""PPO clip, log-probabilities and entropy, on numbers that can be checked by hand."""

from __future__ import annotations

import math

import pytest
import torch

from hooktrainer.algorithms.logprobs import entropy, log_policy, of_tokens
from hooktrainer.algorithms.policy_losses import ppo_clip

LOGPROBS = [-3.5, -2.9, -2.6, -1.5, -3.5, -2.9, -2.6, -1.5]
ADVANTAGES = [2.0, 2.0, 2.0, 2.0, -2.0, -2.0, -2.0, -2.0]


def row(values: list[float], *, grad: bool = False) -> torch.Tensor:
    return torch.tensor([values], dtype=torch.float64, requires_grad=grad)


def test_clip_below_inside_above_and_far_above() -> None:
    logprobs = row(LOGPROBS, grad=True)
    mask = torch.ones(1, 8, dtype=torch.bool)

    result = ppo_clip(logprobs, row([-3.0] * 8), row(ADVANTAGES), mask, clip_ratio_low=0.2, clip_ratio_high=0.28)
    result.loss.sum().backward()

    loss = [-1.21306132, -2.21034184, -2.56, -2.56, 1.6, 2.21034184, 2.9836494, 8.96337814]
    slope = [-1.21306132, -2.21034184, 0, 0, 0, 2.21034184, 2.9836494, 8.96337814]
    torch.testing.assert_close(result.loss.detach(), row(loss), rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(logprobs.grad, row(slope), rtol=1e-7, atol=1e-9)
    assert result.stats["pg_clipfrac"].mean().item() == 0.375
    torch.testing.assert_close(result.stats["ppo_kl"], row(LOGPROBS).neg() - 3.0)
    assert not any(value.requires_grad for value in result.stats.values())


def test_on_the_sampling_policy_nothing_is_clipped_and_the_gradient_is_reinforce() -> None:
    logprobs, advantages = row([-1.0, -0.2, -3.0], grad=True), row([1.0, -2.0, 0.5])

    result = ppo_clip(logprobs, logprobs.detach(), advantages, torch.ones(1, 3, dtype=torch.bool))
    result.loss.sum().backward()

    torch.testing.assert_close(result.loss, -advantages)
    torch.testing.assert_close(logprobs.grad, -advantages)
    assert result.stats["pg_clipfrac"].sum() == result.stats["ppo_kl"].sum() == 0


@pytest.mark.parametrize("hidden", [math.nan, math.inf, 7.0])
def test_what_is_masked_changes_neither_loss_nor_gradient(hidden: float) -> None:
    mask = torch.tensor([[True, False]])
    logprobs = row([-1.0, hidden], grad=True)

    result = ppo_clip(logprobs, row([-1.5, hidden]), row([1.0, hidden]), mask)
    result.loss.sum().backward()

    torch.testing.assert_close(result.loss.detach(), row([-1.2, 0.0]))
    torch.testing.assert_close(logprobs.grad, row([0.0, 0.0]))
    assert result.stats["pg_clipfrac"].tolist() == [[1.0, 0.0]]
    torch.testing.assert_close(result.stats["ppo_kl"], row([-0.5, 0.0]))


def test_one_advantage_an_answer_reaches_all_its_tokens() -> None:
    zeros = torch.zeros(2, 3)
    result = ppo_clip(zeros, zeros, torch.tensor([[1.0], [-2.0]]), torch.ones(2, 3, dtype=torch.bool))
    assert result.loss.tolist() == [[-1.0] * 3, [2.0] * 3]


def test_an_extreme_ratio_is_clamped_without_a_gradient() -> None:
    logprobs = row([-1.0], grad=True)
    result = ppo_clip(logprobs, row([-100.0]), row([-1.0]), torch.ones(1, 1, dtype=torch.bool))
    result.loss.sum().backward()
    assert result.loss.item() == pytest.approx(math.exp(20.0))
    assert logprobs.grad is not None
    assert logprobs.grad.item() == 0.0


@pytest.mark.parametrize(
    ("temperature", "expected"),
    [(1.0, [0.947536964, 1.38629436, 0.656054198]), (0.5, [0.455428623, 1.38629436, 0.13199346])],
)
def test_entropy_at_sampling_temperature(temperature: float, expected: list[float]) -> None:
    logits = torch.tensor([[2.0, 1, 0, -1], [0, 0, 0, 0], [1, -1, 3, 0.5]], dtype=torch.float64)
    found = entropy(log_policy(logits, temperature))
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-7, atol=1e-9)


def test_a_token_that_cannot_be_sampled_has_no_entropy() -> None:
    assert entropy(log_policy(torch.tensor([0.0, 0.0, -math.inf]), 1.0)).item() == pytest.approx(math.log(2))


def test_log_probabilities_of_tokens() -> None:
    logits = torch.log(torch.tensor([[[0.2, 0.8], [0.5, 0.5]]]))
    found = of_tokens(log_policy(logits, 1.0), torch.tensor([[1, 0]]))
    torch.testing.assert_close(found, torch.log(torch.tensor([[0.8, 0.5]])))


def test_half_precision_logits_are_widened_first() -> None:
    assert log_policy(torch.zeros(2, dtype=torch.bfloat16), 1.0).dtype == torch.float32
