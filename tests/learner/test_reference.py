"""The divergence from the reference model: in the loss, in the reward, and its coefficient."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from helpers.learners import (
    CPU,
    GROUPS,
    build,
    copied,
    drifted,
    group,
    learner,
    logprobs_of,
    on_policy,
    trajectory,
    values,
)
from hooktrainer import ports
from hooktrainer.algorithms.kl import kl
from hooktrainer.learner.batch import PaddedBatch

ALIKE = (group([2, 3], trajectory([4, 1], 0.5), trajectory([5, 5, 1], 0.5)),)
"""Groups without an advantage, so that only the divergence has a gradient."""


def divergences(groups: Any, model: torch.nn.Module, estimator: str) -> Tensor:
    """Return the divergence of a model from the one that `build` returns."""
    batch = PaddedBatch.of(groups, pad_id=0, device=CPU)
    reference = logprobs_of(batch, build(), 1.0).detach()
    return kl(logprobs_of(batch, model, 1.0), reference, batch.mask, estimator=estimator)


def moved() -> torch.nn.Module:
    model = build()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    return model


class TestInTheLoss:
    @pytest.mark.parametrize("estimator", ["k2", "k3"])
    def test_kl_loss_and_its_gradient_match_the_formula(self, estimator: str) -> None:
        model = build()
        made = learner(model, kl_coeff=0.3, kl_estimator=estimator)
        model.load_state_dict(moved().state_dict())
        expected = divergences(ALIKE, model, estimator).sum() / 5
        gradients = torch.autograd.grad(expected, list(model.parameters()), allow_unused=True)

        found = values(made.update(ALIKE))

        assert found["actor/kl_loss"] == pytest.approx(float(expected.detach()), rel=1e-5)
        assert found["actor/kl_coef"] == 0.3
        assert found["actor/pg_loss"] == 0.0
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            assert gradient is not None
            torch.testing.assert_close(parameter.grad, 0.3 * gradient, rtol=1e-4, atol=1e-6)

    def test_kl_loss_is_0_on_the_reference_policy(self) -> None:
        found = values(learner(build(), kl_coeff=0.3).update(ALIKE))
        assert found["actor/kl_loss"] == found["actor/grad_norm"] == 0.0

    def test_kl_loss_off_policy_is_weighted_by_current_over_behaviour_policy(self) -> None:
        found = {}
        for corrected in (False, True):
            model = build()
            made = learner(model, kl_coeff=0.3, kl_estimator="k2", kl_off_policy_correction=corrected)
            model.load_state_dict(moved().state_dict())
            groups = drifted(on_policy(ALIKE, model), by=0.5)
            batch = PaddedBatch.of(groups, pad_id=0, device=CPU)
            ratio = torch.exp(logprobs_of(batch, model, 1.0) - batch.behaviour)
            weight = torch.where(batch.mask, ratio, 0.0) if corrected else torch.ones_like(ratio)
            expected = float((divergences(groups, model, "k2") * weight).sum().detach()) / 5
            found[corrected] = values(made.update(groups))["actor/kl_loss"]
            assert found[corrected] == pytest.approx(expected, rel=1e-5)
        assert found[True] != pytest.approx(found[False], rel=0.01)

    def test_no_reference_model_is_kept_without_kl_coeff(self) -> None:
        made = learner(build())
        assert "actor/kl_loss" not in made.update(GROUPS)
        assert made.state_dict()["weights"].keys() == {"policy"}


class TestInTheReward:
    @pytest.mark.parametrize("estimator", ["rloo", "reinforce_plus_plus"])
    @pytest.mark.parametrize("proximal", ["bypass", "recompute"])
    def test_kl_penalty_is_subtracted_from_the_reward_of_each_token(self, estimator: str, proximal: str) -> None:
        model = build()
        made = learner(
            model,
            adv_estimator=estimator,
            kl_coeff=0.3,
            kl_in="reward",
            kl_estimator="k1",
            proximal_policy=proximal,
        )
        model.load_state_dict(moved().state_dict())
        made.start_step(1)
        groups = on_policy(GROUPS, model)
        expected = divergences(groups, model, "k1").detach().sum(dim=1)

        found = values(made.update(groups))

        rewards = torch.tensor([1.0, 0.0, 0.25, 0.5, 0.75]) - 0.3 * expected
        assert found["critic/rewards/mean"] == pytest.approx(float(rewards.mean()), rel=1e-4)
        assert found["critic/rewards/max"] == pytest.approx(float(rewards.max()), rel=1e-4)
        assert found["critic/rewards/min"] == pytest.approx(float(rewards.min()), rel=1e-4)
        assert found["critic/score/mean"] == 0.5
        assert found["actor/reward_kl_penalty"] == pytest.approx(float(expected.sum()) / 11, rel=1e-4)
        assert "actor/kl_loss" not in found


def test_reference_stays_the_initial_policy() -> None:
    model = build()
    before = copied(model)
    made = learner(model, kl_coeff=0.1)
    for _ in range(3):
        made.update(GROUPS)
    reference = made.state_dict()["weights"]["reference"]
    assert all(torch.equal(tensor, before[name]) for name, tensor in reference.items())
    assert not torch.equal(model.head.weight, before["head.weight"])


def test_kl_coeff_may_change_between_updates() -> None:
    made = learner(moved(), kl_coeff=0.3)
    assert isinstance(made, ports.KLControl)
    made.kl_coeff = 0.6
    assert made.update(ALIKE)["actor/kl_coef"].value == 0.6


class TestOverlong:
    def test_overlong_penalty_changes_the_reward_but_not_the_reported_score(self) -> None:
        answers = [trajectory([3] * length, 1.0) for length in (4, 5, 6, 8)]
        found = values(learner(build(), overlong_buffer=4, adv_estimator="dr_grpo").update([group([2], *answers)]))
        rewards = [1.0, 0.75, 0.5, 0.0]
        assert found["critic/rewards/mean"] == pytest.approx(sum(rewards) / 4)
        assert (found["critic/rewards/min"], found["critic/rewards/max"]) == (0.0, 1.0)
        assert found["critic/advantages/max"] == pytest.approx(1.0 - sum(rewards) / 4)
        assert found["critic/score/min"] == 1.0

    def test_overlong_penalty_factor_scales_the_penalty(self) -> None:
        found = values(
            learner(build(), overlong_buffer=4, overlong_penalty_factor=0.5).update(
                [group([2], trajectory([3] * 8, 1.0), trajectory([3], 1.0))]
            )
        )
        assert found["critic/rewards/min"] == 0.5


class TestEpochs:
    def test_two_epochs_are_two_updates_of_one_mini_batch(self) -> None:
        twice, again = build(), build()
        groups = on_policy(GROUPS, twice)
        once = learner(twice, ppo_epochs=2)
        found = values(once.update(groups))
        other = learner(again)
        parts = [values(other.update(groups)) for _ in range(2)]

        assert all(torch.equal(one, two) for one, two in zip(twice.parameters(), again.parameters(), strict=True))
        assert once.state_dict()["updates"] == 2
        for key in ("actor/pg_loss", "actor/grad_norm", "actor/ppo_kl"):
            assert found[key] == pytest.approx((parts[0][key] + parts[1][key]) / 2, rel=1e-6)
        assert found["perf/total_num_tokens"] == parts[0]["perf/total_num_tokens"]

    def test_advantages_are_computed_once_per_mini_batch(self) -> None:
        CALLS.clear()
        learner(build(), adv_estimator=f"{__name__}:counted", ppo_epochs=3).update(GROUPS)
        assert CALLS == [5]


CALLS: list[int] = []


def counted(rewards: Tensor) -> Tensor:
    CALLS.append(len(rewards))
    return rewards
