"""Results of user-defined functions are checked at each call; errors name the option in YAML."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor

from helpers.learners import GROUPS, build, learner
from hooktrainer.algorithms.policy_losses import TokenLoss
from hooktrainer.errors import ConfigError

# The mini-batch has 5 answers, the longest of 4 tokens.


def plain_loss(logprobs: Tensor, advantages: Tensor) -> Tensor:
    return -logprobs * advantages


def scalar_loss(logprobs: Tensor, mask: Tensor) -> Tensor:
    return logprobs[mask].mean()


def loss_of_answers(logprobs: Tensor) -> TokenLoss:
    return TokenLoss(-logprobs.sum(dim=1), {})


def loss_without_stats(logprobs: Tensor) -> TokenLoss:
    return TokenLoss(-logprobs, None)  # type: ignore[arg-type]


def loss_with_a_float(logprobs: Tensor) -> TokenLoss:
    return TokenLoss(-logprobs, {"mine": 0.5})  # type: ignore[dict-item]


def loss_with_the_sum_of_answers(logprobs: Tensor) -> TokenLoss:
    return TokenLoss(-logprobs, {"mine": logprobs.detach().sum(dim=1)})


def loss_with_one_number(logprobs: Tensor) -> TokenLoss:
    return TokenLoss(-logprobs, {"mine": torch.tensor(0.5)})


def no_advantages(rewards: Tensor) -> None: ...


def one_advantage(rewards: Tensor) -> Tensor:
    return rewards[:1]


def three_advantages(rewards: Tensor) -> tuple[Tensor, ...]:
    return rewards, rewards, rewards


def advantages_of_tokens(rewards: Tensor, mask: Tensor) -> Tensor:
    return rewards[:, None].expand(mask.shape)


def advantages_and_odd_returns(rewards: Tensor) -> tuple[Tensor, Tensor]:
    return rewards, rewards


def nothing_made_of_it(values: Tensor) -> Tensor:
    return values


def a_float(values: Tensor) -> float:
    return 1.0


def weights_of_answers(log_ratio: Tensor) -> Tensor:
    return log_ratio.sum(dim=1)


def weights_in_a_column(log_ratio: Tensor) -> Tensor:
    return torch.ones_like(log_ratio[:, :1])


@pytest.mark.parametrize(
    ("key", "function", "message"),
    [
        (
            "policy_loss",
            plain_loss,
            (
                "returned a tensor of shape (5, 4), expected a TokenLoss: return TokenLoss(loss, stats) of "
                "hooktrainer.algorithms.policy_losses, with loss of shape (5, 4), one value per token, and stats {} "
                "or the statistics to report"
            ),
        ),
        ("policy_loss", scalar_loss, "returned a tensor of shape (), expected a TokenLoss"),
        (
            "policy_loss",
            loss_of_answers,
            (
                "returned a TokenLoss whose loss is a tensor of shape (5,), expected a tensor of shape (5, 4), one "
                "value per token; loss_agg_mode aggregates them"
            ),
        ),
        ("policy_loss", loss_without_stats, "returned a TokenLoss whose stats are None, expected a dict of tensors"),
        (
            "policy_loss",
            loss_with_a_float,
            "returned a TokenLoss whose stats['mine'] is a value of type float, expected a tensor of shape (5, 4)",
        ),
        (
            "policy_loss",
            loss_with_the_sum_of_answers,
            "returned a TokenLoss whose stats['mine'] is a tensor of shape (5,), expected a tensor of shape (5, 4)",
        ),
        (
            "adv_estimator",
            no_advantages,
            (
                "returned None, expected a tensor of shape (5,), one value per answer, or (5, 4), one per token; "
                "for a critic the pair of advantages and returns"
            ),
        ),
        ("adv_estimator", one_advantage, "returned a tensor of shape (1,), expected a tensor of shape (5,)"),
        ("adv_estimator", three_advantages, "returned a tuple of 3 (a tensor of shape (5,), a tensor of"),
        (
            "adv_estimator",
            advantages_and_odd_returns,
            "returned returns that are a tensor of shape (5,), expected a tensor of shape (5, 4), one value per token",
        ),
        (
            "loss_agg_mode",
            nothing_made_of_it,
            "returned a tensor of shape (5, 4), expected a tensor of one number",
        ),
        ("loss_agg_mode", a_float, "returned a value of type float, expected a tensor of one number"),
        (
            "behaviour_weight",
            weights_of_answers,
            "returned a tensor of shape (5,), expected a tensor of shape (5, 4), one weight per token",
        ),
    ],
)
def test_invalid_result_error_names_the_function_the_result_and_the_expectation(
    key: str, function: object, message: str
) -> None:
    name = f"{__name__}:{function.__name__}"  # type: ignore[attr-defined]
    made = learner(build(), proximal_policy="recompute", **{key: name})

    with pytest.raises(ConfigError, match=re.escape(f"algorithm.{key}: '{name}' {message}")):
        made.update(GROUPS)


@pytest.mark.parametrize(
    ("key", "function"),
    [
        ("policy_loss", loss_with_one_number),
        ("adv_estimator", advantages_of_tokens),
        ("behaviour_weight", weights_in_a_column),
    ],
)
def test_valid_variants_of_results_are_accepted(key: str, function: object) -> None:
    name = f"{__name__}:{function.__name__}"  # type: ignore[attr-defined]

    metrics = learner(build(), proximal_policy="recompute", **{key: name}).update(GROUPS)

    assert metrics["actor/grad_norm"].value > 0


def test_result_is_checked_against_the_shape_of_its_micro_batch() -> None:
    """Micro-batches are narrower than the mini-batch."""
    name = f"{__name__}:loss_with_one_number"

    assert learner(build(), policy_loss=name, micro_batch_size=1).update(GROUPS)["actor/mine"].value == 0.5
