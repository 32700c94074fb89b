"""Advantages, returns, shaping and policy losses on vectors of nine digits, in both precisions."""

from __future__ import annotations

import pytest
import torch

from helpers.tokens import HIDDEN as _
from helpers.tokens import assert_vector, bools, ints, slope, tensor
from hooktrainer.algorithms.advantages import dr_grpo, grpo, maxrl, opo, rloo
from hooktrainer.algorithms.masking import MAX_LOG_RATIO
from hooktrainer.algorithms.policy_losses import cispo, decoupled_ppo, gspo, ppo_clip
from hooktrainer.algorithms.returns import (
    discounted_returns,
    gae,
    reinforce_plus_plus,
    reinforce_plus_plus_baseline,
    token_rewards,
    whiten,
)
from hooktrainer.algorithms.shaping import overlong_penalty

Dtype = torch.dtype


@pytest.fixture(params=[torch.float64, torch.float32], ids=["float64", "float32"])
def dtype(request: pytest.FixtureRequest) -> Dtype:
    return request.param


def test_group_advantages_of_ragged_and_interleaved_groups(dtype: Dtype) -> None:
    rewards, groups = tensor([1, 2, 0, 5, 0.5, 0.5], dtype), ints([0, 1, 0, 2, 1, 0])

    assert_vector(grpo(rewards, groups), [0.999998, 0.707106115, -0.999998, 0, -0.707106115, 0])
    assert_vector(grpo(rewards, groups, epsilon=1e-4), [0.99980004, 0.707040121, -0.99980004, 0, -0.707040121, 0])
    assert_vector(dr_grpo(rewards, groups), [0.5, 0.75, -0.5, 0, -0.75, 0])
    assert_vector(rloo(rewards, groups), [0.75, 1.5, -0.75, 0, -1.5, 0])
    lengths = ints([2, 5, 4, 3, 1, 3])
    assert_vector(opo(rewards, groups, lengths), [0.611111111, 0.25, -0.388888889, 0, -1.25, 0.111111111])
    assert_vector(maxrl(rewards, groups), [0.999998, 0.59999952, -0.999998, 0, -0.59999952, 0])


def test_whitening(dtype: Dtype) -> None:
    values, mask = tensor([[1, 2, 4], [_, 3, _]], dtype), bools([[1, 1, 1], [0, 1, 0]])
    assert_vector(whiten(values, mask), [[-1.161895, -0.387298333, 1.161895], [_, 0.387298333, _]])
    wild = tensor([[1, 2, 4], [100, 3, 0]], dtype)
    assert_vector(whiten(wild, mask), [[-1.161895, -0.387298333, 1.161895], [_, 0.387298333, _]])


def test_reinforce_plus_plus_with_a_baseline(dtype: Dtype) -> None:
    rewards, groups = tensor([1, 0, 0.25, 0.75], dtype), ints([0, 0, 1, 1])
    mask = bools([[1, 1, 1, 0], [1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 1]])

    a, b, c, d = 0.957073192, -1.69328334, -1.03069421, 0.294484059
    expected = [[a, a, a, _], [b, _, _, _], [c, c, _, _], [d, _, d, d]]
    assert_vector(reinforce_plus_plus_baseline(rewards, groups, mask), expected)


def test_overlong_penalty(dtype: Dtype) -> None:
    lengths = tensor([10, 16, 17, 18, 20, 25], dtype)
    assert_vector(overlong_penalty(lengths, max_length=20, buffer=4), [0, 0, -0.25, -0.5, -1, -1])
    whole = overlong_penalty(lengths.long(), max_length=20, buffer=4)
    assert whole.tolist() == [0, 0, -0.25, -0.5, -1, -1]


def test_reinforce_plus_plus_with_a_divergence_in_the_reward_and_a_gap(dtype: Dtype) -> None:
    mask = bools([[1, 1, 0, 1, 0], [1, 1, 1, 0, 0]])
    proximal = tensor([[-1, -2, _, -0.7, _], [-0.3, -1.1, -0.8, _, _]], dtype)
    reference = tensor([[-1.2, -1.5, _, -1, _], [-0.5, -1, -0.6, _, _]], dtype)

    of_tokens = token_rewards(tensor([1, -0.5], dtype), mask, proximal - reference, kl_coeff=0.1)
    assert_vector(of_tokens, [[-0.02, 0.05, _, 0.97, _], [-0.02, 0.01, -0.48, _, _]])
    returns = discounted_returns(of_tokens, mask, gamma=1.0)
    assert_vector(returns, [[1, 1.02, _, 0.97, _], [-0.49, -0.47, -0.48, _, _]])
    first, second = [0.916786711, 0.941509049, _, 0.879703203, _], [-0.92502749, -0.900305152, -0.912666321, _, _]
    assert_vector(reinforce_plus_plus(of_tokens, mask, gamma=1.0), [first, second])


def test_gae_over_a_gap(dtype: Dtype) -> None:
    mask = bools([[1, 1, 0, 0, 1, 1]])
    rewards = tensor([[0, 0.1, 0, 0, 0, 1]], dtype)
    for nine in (9.0, float("nan")):
        values = tensor([[0.5, 0.4, nine, -nine, 0.6, 0.3]], dtype)
        advantages, returns = gae(rewards, values, mask, gamma=0.9, lam=0.8)
        assert_vector(returns, [[0.6230016, 0.76528, _, _, 0.774, 1]])
        assert_vector(advantages, [[-0.832540217, 0.094552784, _, _, -0.637391745, 1.37537918]])
        unwhitened = torch.where(mask, returns - values, 0.0)
        assert_vector(unwhitened, [[0.1230016, 0.36528, _, _, 0.174, 0.7]])


def test_ppo_clip_and_dual_clip(dtype: Dtype) -> None:
    proximal, mask = tensor([[-3] * 8], dtype), bools([[1] * 8])
    logprobs = tensor([[-3.5, -2.9, -2.6, -1.5, -3.5, -2.9, -2.6, -1.5]], dtype)
    advantages = tensor([[2, 2, 2, 2, -2, -2, -2, -2]], dtype)
    bounds = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.28}

    single = ppo_clip(logprobs, proximal, advantages, mask, **bounds)
    loss = [-1.21306132, -2.21034184, -2.56, -2.56, 1.6, 2.21034184, 2.9836494, 8.96337814]
    assert_vector(single.loss, [loss])
    gradient = [-1.21306132, -2.21034184, 0, 0, 0, 2.21034184, 2.9836494, 8.96337814]
    assert_vector(slope(lambda x: ppo_clip(x, proximal, advantages, mask, **bounds).loss, logprobs), [gradient])
    assert single.stats["pg_clipfrac"].mean().item() == 0.375

    dual = ppo_clip(logprobs, proximal, advantages, mask, clip_ratio_c=3.0, **bounds)
    assert_vector(dual.loss, [[*loss[:-1], 6]])
    found = slope(lambda x: ppo_clip(x, proximal, advantages, mask, clip_ratio_c=3.0, **bounds).loss, logprobs)
    assert_vector(found, [[*gradient[:-1], 0]])
    assert dual.stats["pg_clipfrac"].mean().item() == 0.375
    assert dual.stats["pg_clipfrac_lower"].mean().item() == 0.125


def test_gspo_on_a_ragged_mask(dtype: Dtype) -> None:
    drift = [[0.3, -0.1, 0.1, _], [0.5, 0.1, _, _], [-0.6, _, -0.2, -0.1], [-0.4, -0.2, -0.5, -0.1], [0.2, 0.4, 0.3, _]]
    mask = bools([[value is not _ for value in row] for row in drift])
    logprobs, proximal = tensor(drift, dtype) - 2.0, torch.full((5, 4), -2.0, dtype=dtype)
    advantages = tensor([[1], [2], [-1], [1.5], [-1]], dtype)

    def loss_of(current: torch.Tensor) -> torch.Tensor:
        return gspo(current, proximal, advantages, mask, clip_ratio_low=0.1, clip_ratio_high=0.2).loss

    def spread(values: list[float]) -> list[list[float | None]]:
        rows = zip(values, mask.tolist(), strict=True)
        return [[value if inside else _ for inside in row] for value, row in rows]

    assert_vector(loss_of(logprobs), spread([-1.10517092, -2.4, 0.9, -1.11122733, 1.34985881]))
    assert_vector(slope(loss_of, logprobs), spread([-1.10517092, 0, 0, -1.11122733, 1.34985881]))
    lengths = mask.sum(dim=1, keepdim=True)
    whole = (loss_of(logprobs) / lengths).sum() / 5
    assert_vector(whole, -0.473307888)
    gradient = slope(lambda current: loss_of(current) / lengths / 5, logprobs)
    assert_vector(gradient, spread([-0.0736780612, 0, 0, -0.0555613666, 0.0899905872]))
    stats = gspo(logprobs, proximal, advantages, mask, clip_ratio_low=0.1, clip_ratio_high=0.2).stats
    assert_vector(stats["pg_clipfrac"].sum() / mask.sum(), 0.333333333)


def test_cispo(dtype: Dtype) -> None:
    proximal, mask = tensor([[-2] * 6], dtype), bools([[1] * 6])
    logprobs, advantages = tensor([[-3, -1.9, -1, -3, -1.9, -1]], dtype), tensor([[1, 1, 1, -1, -1, -1]], dtype)

    result = cispo(logprobs, proximal, advantages, mask, cispo_max_ratio=1.5)
    assert_vector(result.loss, [[1.10363832, 2.09982474, 1.5, -1.10363832, -2.09982474, -1.5]])
    assert result.stats["pg_clipfrac"].mean().item() == pytest.approx(1 / 3)
    gradient = slope(lambda x: cispo(x, proximal, advantages, mask, cispo_max_ratio=1.5).loss, logprobs)
    assert_vector(gradient, [[-0.367879441, -1.10517092, -1.5, 0.367879441, 1.10517092, 1.5]])
    bounded = cispo(logprobs, proximal, advantages, mask, cispo_max_ratio=1.5, cispo_min_ratio=0.8)
    assert_vector(bounded.loss, [[2.4, 2.09982474, 1.5, -2.4, -2.09982474, -1.5]])


def test_decoupled_ppo(dtype: Dtype) -> None:
    behaviour, proximal = tensor([[-3.2, -2.7, -3.2, -3.2, -2.7, -3.2]], dtype), tensor([[-3] * 6], dtype)
    logprobs, mask = tensor([[-3.5, -2.9, -2.6, -3.5, -2.9, -2.6]], dtype), bools([[1] * 6])
    advantages = tensor([[1, 1, 1, -1, -1, -1]], dtype)
    bounds = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.28, "behaviour_weight_cap": None}

    result = decoupled_ppo(logprobs, proximal, behaviour, advantages, mask, **bounds)
    weight = [1.22140276, 0.740818221, 1.22140276, 1.22140276, 0.740818221, 1.22140276]
    assert_vector(result.stats["behaviour_weight"], [weight])
    assert_vector(result.loss, [[-0.740818221, -0.818730753, -1.56339553, 0.977122207, 0.818730753, 1.8221188]])
    gradient = slope(lambda x: decoupled_ppo(x, proximal, behaviour, advantages, mask, **bounds).loss, logprobs)
    assert_vector(gradient, [[-0.740818221, -0.818730753, 0, 0, 0.818730753, 1.8221188]])
    assert MAX_LOG_RATIO == 20.0
