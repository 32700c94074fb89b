"""The critic: values, their loss, and their effect on the policy."""

from __future__ import annotations

import math

import attrs
import pytest
import torch
from torch import nn

from helpers.learners import GROUPS, build, copied, gradients, learner, on_policy, values
from hooktrainer.errors import ConfigError, NonFiniteError
from hooktrainer.learner.critic import value_loss
from hooktrainer.models.policy import full_state
from hooktrainer.run.composition import composition_of
from hooktrainer.run.loading import config_from_mapping

KINDS = ("value_head", "model")


def of_ppo(model: nn.Module, use: str, **options: object) -> object:
    return learner(model, adv_estimator="gae", critic_use=use, **options)


def row(*numbers: float) -> torch.Tensor:
    return torch.tensor([numbers], dtype=torch.float64)


class TestValueLoss:
    def test_value_loss_matches_computed_values(self) -> None:
        mask = torch.tensor([[True, True, True, True, False]])
        found = value_loss(
            row(0.3, 1.0, 1.0, -1.0, torch.nan),
            row(0.2, 0.2, 0.2, 0.2, torch.nan),
            row(1.0, 1.0, 2.0, 2.0, torch.nan),
            mask,
            cliprange=0.5,
        )
        # Within the range: unclipped. Beyond it, nearer to the return: clipped to the range. Further away: unclipped.
        assert found.loss.tolist()[0] == pytest.approx([0.7**2 / 2, 0.3**2 / 2, 1.3**2 / 2, 3.0**2 / 2, 0.0])
        assert found.stats["vf_clipfrac"].tolist() == [[0, 1, 1, 0, 0]]

    def test_a_clipped_value_has_no_gradient(self) -> None:
        current = row(0.3, 1.0, 1.0, -1.0).requires_grad_()
        before, returns = row(0.2, 0.2, 0.2, 0.2), row(1.0, 1.0, 2.0, 2.0)
        value_loss(current, before, returns, torch.ones(1, 4, dtype=torch.bool)).loss.sum().backward()
        assert current.grad is not None
        assert current.grad[0].tolist() == pytest.approx([-0.7, 0.0, 0.0, -3.0])

    def test_value_loss_without_cliprange_is_half_the_squared_error(self) -> None:
        mask = torch.ones(1, 2, dtype=torch.bool)
        found = value_loss(row(3.0, -1.0), row(0.0, 0.0), row(1.0, 1.0), mask, cliprange=None)
        assert found.loss.tolist() == [[2.0, 2.0]]
        assert found.stats["vf_clipfrac"].sum() == 0

    def test_gradient_of_value_loss_passes_gradcheck_and_ignores_masked_tokens(self) -> None:
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
    def test_values_start_at_0_and_the_value_loss_decreases(self, use: str) -> None:
        model = build()
        groups = on_policy(GROUPS, model)
        made = of_ppo(model, use, lr=1e-5, critic_lr=1e-2, critic_cliprange=None)
        found = [values(made.update(groups)) for _ in range(40)]

        assert found[0]["critic/values/mean"] == 0.0
        assert found[0]["critic/vf_explained_var"] == pytest.approx(0.0, abs=1e-6)
        assert found[-1]["critic/vf_loss"] < found[0]["critic/vf_loss"] / 4
        assert found[-1]["critic/vf_explained_var"] > 0.5
        assert found[-1]["critic/values/mean"] == pytest.approx(found[-1]["critic/returns/mean"], abs=0.1)

    def test_policy_does_not_change_during_critic_warmup(self, use: str) -> None:
        model = build()
        made = of_ppo(model, use, critic_warmup_updates=3, weight_decay=0.1)
        before = copied(model)
        warming = [values(made.update(GROUPS)) for _ in range(3)]
        assert all(torch.equal(before[name], tensor) for name, tensor in full_state(model).items())
        assert {each["actor/lr"] for each in warming} == {0.0}
        assert warming[-1]["critic/vf_loss"] < warming[0]["critic/vf_loss"]

        assert values(made.update(GROUPS))["actor/lr"] == 0.01
        assert not all(torch.equal(before[name], tensor) for name, tensor in full_state(model).items())

    def test_weights_for_engines_exclude_the_critic(self, use: str) -> None:
        model = build()
        assert of_ppo(model, use).weights().keys() == full_state(model).keys()

    def test_critic_metrics_are_reported(self, use: str) -> None:
        found = values(of_ppo(build(), use).update(GROUPS))
        reported = ("vf_loss", "vf_clipfrac", "vf_explained_var", "values/mean", "returns/mean", "grad_norm", "lr")
        assert {f"critic/{key}" for key in reported} <= found.keys()

    def test_returns_equal_the_scores_with_lambda_and_gamma_1(self, use: str) -> None:
        model = build()
        found = values(of_ppo(model, use).update(GROUPS))
        assert found["critic/returns/mean"] == pytest.approx((2 * 1.0 + 0.25 + 4 * 0.5 + 0.75) / 11)


@pytest.mark.parametrize(("use", "trains"), [("value_head", True), ("model", False)])
def test_value_head_trains_the_policy_model_and_a_separate_critic_does_not(use: str, trains: bool) -> None:
    model = build()
    made = learner(model, adv_estimator=f"{__name__}:nothing_to_gain", critic_use=use)
    made.update(GROUPS)  # the head is 0 until then
    made.update(GROUPS)
    assert any(bool(gradient.any()) for gradient in gradients(model).values()) is trains


def nothing_to_gain(values: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """No advantage, so that the policy has no loss, and returns of 1."""
    return torch.where(mask, 0.0, 0.0), torch.ones_like(values)


@pytest.mark.parametrize("score", [0.1, 0.7, 3.3, 100.1])
def test_explained_variance_of_equal_returns_is_0(score: float) -> None:
    alike = [
        attrs.evolve(each, trajectories=tuple(attrs.evolve(answer, score=score) for answer in each.trajectories))
        for each in GROUPS
    ]
    made = of_ppo(build(), "model", critic_cliprange=None, lr=1e-3)
    assert all(math.isnan(values(made.update(alike))["critic/vf_explained_var"]) for _ in range(4))


def test_explained_variance_does_not_depend_on_the_mean_of_returns() -> None:
    made = learner(build(), adv_estimator=f"{__name__}:far_off", critic_use="model")
    # Values are 0 at first, so that the residuals vary as the returns do.
    assert values(made.update(GROUPS))["critic/vf_explained_var"] == pytest.approx(0.0, abs=1e-6)


def far_off(values: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns around 1000 that differ by a few thousandths."""
    steps = torch.arange(mask.numel(), dtype=values.dtype).view(mask.shape)
    return torch.where(mask, 0.0, 0.0), 1000 + steps / 16


@pytest.mark.parametrize("use", KINDS)
def test_lr_warmup_of_the_policy_starts_after_critic_warmup(use: str) -> None:
    made = of_ppo(build(), use, critic_warmup_updates=2, lr_warmup=4, lr=0.01)
    found = [values(made.update(GROUPS)) for _ in range(7)]
    assert [each["actor/lr"] for each in found] == pytest.approx([0, 0, 0.0025, 0.005, 0.0075, 0.01, 0.01])
    assert [each["critic/lr"] for each in found] == pytest.approx([0.0025, 0.005, 0.0075, *[0.01] * 4])


def test_non_finite_critic_loss_is_reported_by_its_metric() -> None:
    made = learner(build(), adv_estimator=f"{__name__}:no_returns", critic_use="model")
    with pytest.raises(NonFiniteError, match="critic/vf_loss is nan: no update was made"):
        made.update(GROUPS)


def no_returns(values: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.where(mask, 0.0, 0.0), torch.full_like(values, torch.nan)


class Recording(nn.Module):
    """A dropout that records whether it was called with gradients, and in training."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[bool, bool]] = []

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        self.seen.append((torch.is_grad_enabled(), self.training))
        return nn.functional.dropout(states, 0.2, self.training)


class Dropping(nn.Module):
    """A model with a dropout."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.drop, self.width = model, Recording(), model.width

    def hidden(self, *args: object, **options: object) -> torch.Tensor:
        return self.drop(self.model.hidden(*args, **options))

    def project(self, states: torch.Tensor) -> torch.Tensor:
        return self.model.project(states)

    def forward(self, tokens: torch.Tensor, left_pad: object = None, *, logits_to_keep: object = None) -> torch.Tensor:
        return self.model.project(self.hidden(tokens, left_pad, states_to_keep=logits_to_keep))


@pytest.mark.parametrize("iterations", [1, 2])
@pytest.mark.parametrize("use", ["none", *KINDS])
def test_no_pass_of_an_update_has_dropout(use: str, iterations: int) -> None:
    model = Dropping(build())
    groups = on_policy(GROUPS, model.eval())
    options = {} if use == "none" else {"adv_estimator": "gae"}
    made = learner(
        model.train(), critic_use=use, proximal_policy="recompute", iterations_per_step=iterations, **options
    )
    made.start_step(1)
    drops = [part for network in (model, made._models.critic) if network for part in network.modules()]
    for drop in drops:
        if isinstance(drop, Recording):
            drop.seen.clear()

    found = values(made.update(groups))

    assert found["rollout_corr/log_ratio_abs"] == pytest.approx(0.0, abs=1e-6)
    seen = [each for drop in drops if isinstance(drop, Recording) for each in drop.seen]
    assert (True, False) in seen
    assert {training for _, training in seen} == {False}
    assert all(drop.training for drop in drops)


class NoStates(nn.Module):
    """A model that returns only logits."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))


class TestFaults:
    def test_a_model_without_hidden_states_is_refused(self) -> None:
        with pytest.raises(ConfigError, match=r"critic: .* the model NoStates gives none: it needs `width`"):
            of_ppo(NoStates(), "value_head")

    def test_estimator_that_requires_values_needs_a_critic(self) -> None:
        with pytest.raises(ConfigError, match=r"algorithm.adv_estimator: 'gae' requires 'values'"):
            learner(build(), adv_estimator="gae")

    def test_user_defined_estimator_without_returns_is_refused_with_a_critic(self) -> None:
        made = learner(build(), adv_estimator=f"{__name__}:without_returns", critic_use="model")
        with pytest.raises(ConfigError, match="critic.use: .*without_returns' returns no targets for the critic"):
            made.update(GROUPS)

    @pytest.mark.parametrize(
        ("sections", "fault"),
        [
            (
                {"algorithm": {"adv_estimator": "gae"}},
                "algorithm.adv_estimator: gae needs a critic, and critic.use is none",
            ),
            ({"critic": {"use": "model"}}, "critic.use: 'model' has no effect"),
            ({"critic": {"use": "head"}}, "critic.use: expected none or value_head or model, found 'head'"),
            ({"critic": {"lr": 0.1}}, "critic.lr: 0.1 has no effect with use: none"),
            ({"critic": {"warmup_updates": 2}}, "critic.warmup_updates: 2 has no effect with use: none"),
            ({"critic": {"cliprange": 0}}, "critic.cliprange: expected a number above 0, or null"),
            ({"critic": {"coeff": -1}}, "critic.coeff: "),
            ({"critic": {"coeff": 0.9}}, "critic.coeff: 0.9 has no effect with use: none"),
            ({"critic": {"cliprange": 0.9}}, "critic.cliprange: 0.9 has no effect with use: none"),
            ({"critic": {"use": "model", "lr": 0}, "algorithm": {"adv_estimator": "gae"}}, "critic.lr: "),
        ],
    )
    def test_conflicting_critic_options_are_refused(self, sections: dict[str, object], fault: str) -> None:
        with pytest.raises(ConfigError, match=fault):
            composition_of(config_from_mapping({**NAMED, **sections}))


NAMED = {
    "task": "sort_digits",
    "model": "decoder",
    "rollout": "inline",
    "plugins": ["weight_sync"],
    "trainer": {"train_batch_size": 1, "ppo_mini_batch_size": 1, "total_steps": 1},
}


def without_returns(rewards: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    return rewards - values[:, 0]
