"""The critic: values, their loss, and what becomes of the policy beside it."""

from __future__ import annotations

import attrs
import pytest
import torch
from learners import GROUPS, build, copied, learner, on_policy, values
from torch import nn

from hooktrainer.config import build_parts, config_from_mapping
from hooktrainer.errors import ConfigError
from hooktrainer.learner.critic import value_loss
from hooktrainer.models.policy import full_state

KINDS = ("value_head", "model")


def of_ppo(model: nn.Module, use: str, **options: object) -> object:
    return learner(model, adv_estimator="gae", critic_use=use, **options)


def row(*numbers: float) -> torch.Tensor:
    return torch.tensor([numbers], dtype=torch.float64)


class TestValueLoss:
    def test_in_numbers(self) -> None:
        mask = torch.tensor([[True, True, True, True, False]])
        found = value_loss(
            row(0.3, 1.0, 1.0, -1.0, torch.nan),
            row(0.2, 0.2, 0.2, 0.2, torch.nan),
            row(1.0, 1.0, 2.0, 2.0, torch.nan),
            mask,
            cliprange=0.5,
        )
        # Near: as it is. Beyond the range, and nearer to the return: what it would be at the range. Further: as it is.
        assert found.loss.tolist()[0] == pytest.approx([0.7**2 / 2, 0.3**2 / 2, 1.3**2 / 2, 3.0**2 / 2, 0.0])
        assert found.stats["vf_clipfrac"].tolist() == [[0, 1, 1, 0, 0]]

    def test_a_clipped_value_has_no_gradient(self) -> None:
        current = row(0.3, 1.0, 1.0, -1.0).requires_grad_()
        before, returns = row(0.2, 0.2, 0.2, 0.2), row(1.0, 1.0, 2.0, 2.0)
        value_loss(current, before, returns, torch.ones(1, 4, dtype=torch.bool)).loss.sum().backward()
        assert current.grad is not None
        assert current.grad[0].tolist() == pytest.approx([-0.7, 0.0, 0.0, -3.0])

    def test_without_a_range_it_is_half_the_square(self) -> None:
        mask = torch.ones(1, 2, dtype=torch.bool)
        found = value_loss(row(3.0, -1.0), row(0.0, 0.0), row(1.0, 1.0), mask, cliprange=None)
        assert found.loss.tolist() == [[2.0, 2.0]]
        assert found.stats["vf_clipfrac"].sum() == 0

    def test_its_gradient_is_right_and_nothing_leaks_from_masked_tokens(self) -> None:
        generator = torch.Generator().manual_seed(0)
        before, returns = (torch.randn(3, 4, dtype=torch.float64, generator=generator) for _ in range(2))
        mask = torch.rand(3, 4, generator=generator) < 0.7
        current = torch.randn(3, 4, dtype=torch.float64, generator=generator).masked_fill(~mask, torch.nan)
        current.requires_grad_()

        def loss(values: torch.Tensor) -> torch.Tensor:
            return value_loss(torch.where(mask, values, torch.nan), before, returns, mask).loss

        inside = current.detach().nan_to_num().requires_grad_()
        assert torch.autograd.gradcheck(loss, (inside,))
        value_loss(current, before, returns, mask).loss.sum().backward()
        assert current.grad is not None
        assert current.grad[~mask].tolist() == [0.0] * int((~mask).sum())
        assert current.grad[mask].isfinite().all()


@pytest.mark.parametrize("use", KINDS)
class TestTraining:
    def test_it_starts_at_0_and_its_loss_falls(self, use: str) -> None:
        model = build()
        groups = on_policy(GROUPS, model)
        made = of_ppo(model, use, lr=1e-5, critic_lr=1e-2, critic_cliprange=None)
        found = [values(made.update(groups)) for _ in range(40)]

        assert found[0]["critic/values/mean"] == 0.0
        assert found[0]["critic/vf_explained_var"] == pytest.approx(0.0, abs=1e-6)
        assert found[-1]["critic/vf_loss"] < found[0]["critic/vf_loss"] / 4
        assert found[-1]["critic/vf_explained_var"] > 0.5
        assert found[-1]["critic/values/mean"] == pytest.approx(found[-1]["critic/returns/mean"], abs=0.1)

    def test_while_it_warms_up_the_policy_stays_as_it_is(self, use: str) -> None:
        model = build()
        made = of_ppo(model, use, critic_warmup_updates=3, weight_decay=0.1)
        before = copied(model)
        warming = [values(made.update(GROUPS)) for _ in range(3)]
        assert all(torch.equal(before[name], tensor) for name, tensor in full_state(model).items())
        assert {each["actor/lr"] for each in warming} == {0.0}
        assert warming[-1]["critic/vf_loss"] < warming[0]["critic/vf_loss"]

        assert values(made.update(GROUPS))["actor/lr"] == 0.01
        assert not all(torch.equal(before[name], tensor) for name, tensor in full_state(model).items())

    def test_it_is_no_part_of_what_engines_get(self, use: str) -> None:
        model = build()
        assert of_ppo(model, use).weights().keys() == full_state(model).keys()

    def test_what_it_reports(self, use: str) -> None:
        found = values(of_ppo(build(), use).update(GROUPS))
        reported = ("vf_loss", "vf_clipfrac", "vf_explained_var", "values/mean", "returns/mean", "grad_norm", "lr")
        assert {f"critic/{key}" for key in reported} <= found.keys()

    def test_with_lambda_and_gamma_1_returns_are_the_scores(self, use: str) -> None:
        model = build()
        found = values(of_ppo(model, use).update(GROUPS))
        assert found["critic/returns/mean"] == pytest.approx((2 * 1.0 + 0.25 + 4 * 0.5 + 0.75) / 11)


def test_the_value_head_trains_the_trunk_and_a_model_of_its_own_leaves_it_alone() -> None:
    moved = {}
    alike = [attrs.evolve(each, trajectories=each.trajectories[:1] * 2) for each in GROUPS]
    for use in KINDS:
        model = build()
        made = of_ppo(model, use, critic_coeff=10.0)
        before = copied(model)
        made.update(alike)
        made.update(alike)
        moved[use] = sum(float((tensor - before[name]).abs().sum()) for name, tensor in full_state(model).items())
    assert moved["value_head"] != moved["model"]


class NoStates(nn.Module):
    """A model that gives logits and nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))


class TestFaults:
    def test_a_model_without_hidden_states_is_refused(self) -> None:
        with pytest.raises(ConfigError, match=r"critic: .* the model NoStates gives none: it needs `width`"):
            of_ppo(NoStates(), "value_head")

    def test_an_estimator_that_asks_for_values_needs_a_critic(self) -> None:
        with pytest.raises(ConfigError, match=r"algorithm.adv_estimator: 'gae' asks for 'values'"):
            learner(build(), adv_estimator="gae")

    def test_an_estimator_of_the_users_own_that_gives_no_returns(self) -> None:
        made = learner(build(), adv_estimator=f"{__name__}:without_returns", critic_use="model")
        with pytest.raises(ConfigError, match="critic.use: .*without_returns' gives no returns"):
            made.update(GROUPS)

    @pytest.mark.parametrize(
        ("sections", "fault"),
        [
            (
                {"algorithm": {"adv_estimator": "gae"}},
                "algorithm.adv_estimator: gae needs a critic, and critic.use is none",
            ),
            ({"critic": {"use": "model"}}, "critic.use: 'model' would be trained for nothing"),
            ({"critic": {"use": "head"}}, "critic.use: expected none or value_head or model, found 'head'"),
            ({"critic": {"lr": 0.1}}, "critic.lr: 0.1 has no effect with use: none"),
            ({"critic": {"warmup_updates": 2}}, "critic.warmup_updates: 2 has no effect with use: none"),
            ({"critic": {"cliprange": 0}}, "critic.cliprange: expected a number above 0, or null"),
            ({"critic": {"coeff": -1}}, "critic.coeff: "),
            ({"critic": {"use": "model", "lr": 0}, "algorithm": {"adv_estimator": "gae"}}, "critic.lr: "),
        ],
    )
    def test_options_that_do_not_fit_together(self, sections: dict[str, object], fault: str) -> None:
        with pytest.raises(ConfigError, match=fault):
            build_parts(config_from_mapping({**NAMED, **sections}))


NAMED = {
    "task": "sort_digits",
    "model": "decoder",
    "rollout": "inline",
    "plugins": ["weight_sync"],
    "trainer": {"train_batch_size": 1, "ppo_mini_batch_size": 1, "total_steps": 1},
}


def without_returns(rewards: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    return rewards - values[:, 0]
