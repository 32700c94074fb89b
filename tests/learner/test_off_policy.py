"""Off-policy updates: the proximal policy, behaviour weights and rejection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from helpers import rollouts
from helpers.learners import CPU, GROUPS, build, drifted, gradients, learner, logprobs_of, on_policy, values
from hooktrainer.algorithms.policy_losses import TokenLoss, ppo_clip
from hooktrainer.errors import ConfigError
from hooktrainer.learner.batch import PaddedBatch
from hooktrainer.ports import Group
from hooktrainer.rollout.inline import InlineOptions
from hooktrainer.run.composition import composition_of
from hooktrainer.run.loading import config_from_mapping

KINDS = ("bypass", "recompute", "log_linear")
SEEN: list[Tensor] = []


def recording(logprobs: Tensor, proximal: Tensor, advantages: Tensor, mask: Tensor) -> TokenLoss:
    """PPO that records the log-probabilities of the proximal policy."""
    SEEN.append(torch.where(mask, proximal, 0.0))
    return ppo_clip(logprobs, proximal, advantages, mask)


@pytest.fixture
def seen() -> list[Tensor]:
    SEEN.clear()
    return SEEN


def batch_of(groups: Sequence[Group]) -> PaddedBatch:
    return PaddedBatch.of(groups, pad_id=0, device=CPU)


def masked(groups: Sequence[Group], model: nn.Module) -> Tensor:
    batch = batch_of(groups)
    return torch.where(batch.mask, logprobs_of(batch, model, 1.0).detach(), 0.0)


def at_versions(groups: Sequence[Group], *versions: int) -> list[Group]:
    """The groups, with the tokens of each answer sampled from these versions in turn."""
    return [
        attrs.evolve(
            each,
            trajectories=tuple(
                attrs.evolve(answer, versions=np.resize(np.array(versions), len(answer.tokens)))
                for answer in each.trajectories
            ),
        )
        for each in groups
    ]


class TestProximalPolicy:
    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("loss", ["ppo_clip", "gspo", "cispo"])
    def test_on_policy_ratio_is_1_and_nothing_is_clipped(self, kind: str, loss: str) -> None:
        model = build()
        made = learner(model, proximal_policy=kind, policy_loss=loss, iterations_per_step=2)
        made.start_step(1)
        found = values(made.update(on_policy(GROUPS, model)))
        assert found["actor/log_ratio_abs"] == pytest.approx(0.0, abs=1e-6)
        assert found["actor/pg_clipfrac"] == 0.0
        assert found.get("rollout_corr/log_ratio_abs", 0.0) == pytest.approx(0.0, abs=1e-6)

    @pytest.mark.parametrize(("iterations", "epochs"), [(3, 1), (1, 3), (3, 2)])
    def test_recomputed_proximal_policy_is_that_of_the_start_of_the_step(
        self, iterations: int, epochs: int, seen: list[Tensor]
    ) -> None:
        model = build()
        groups = drifted(on_policy(GROUPS, model))
        made = learner(
            model,
            proximal_policy="recompute",
            policy_loss=f"{__name__}:recording",
            iterations_per_step=iterations,
            ppo_epochs=epochs,
        )
        for step in (1, 2):
            start = masked(groups, model)
            made.start_step(step)
            for _ in range(iterations):
                made.update(groups)
            assert (masked(groups, model) - start).abs().max() > 0.01
            assert len(seen) == iterations * epochs
            for proximal in seen:
                torch.testing.assert_close(proximal, start, rtol=0, atol=1e-6)
            seen.clear()

    def test_policy_change_since_the_start_of_the_step_is_reported(self) -> None:
        model = build()
        groups = on_policy(GROUPS, model)
        made = learner(model, proximal_policy="recompute", iterations_per_step=3)
        made.start_step(1)
        start = masked(groups, model)
        for _ in range(3):
            expected = float((start - masked(groups, model)).sum()) / 11
            assert values(made.update(groups))["actor/ppo_kl"] == pytest.approx(expected, abs=1e-6)
        assert abs(expected) > 1e-3

    def test_bypassed_proximal_policy_is_the_sampler(self, seen: list[Tensor]) -> None:
        groups = drifted(on_policy(GROUPS, build()))
        made = learner(build(), policy_loss=f"{__name__}:recording", iterations_per_step=2)
        made.start_step(1)
        for _ in range(2):
            made.update(groups)
        behaviour = torch.where(batch_of(groups).mask, batch_of(groups).behaviour, 0.0)
        assert all(torch.equal(proximal, behaviour) for proximal in seen)

    @pytest.mark.parametrize("epochs", [1, 2])
    def test_interpolated_proximal_policy_is_between_sampler_and_current_policy_by_age(
        self, epochs: int, seen: list[Tensor]
    ) -> None:
        # With 2 E updates a step, step 3 starts at update 4 E; tokens of versions 0, 1, 2 are of updates 0, 2 E, 4 E.
        model = build()
        groups = at_versions(drifted(on_policy(GROUPS, model)), 0, 1, 2)
        made = learner(
            model,
            proximal_policy="log_linear",
            policy_loss=f"{__name__}:recording",
            iterations_per_step=2,
            ppo_epochs=epochs,
        )
        batch = batch_of(groups)
        behaviour = torch.where(batch.mask, batch.behaviour, 0.0)
        made.start_step(3)
        made.update(groups)
        current = masked(groups, model)
        made.update(groups)

        now = 5 if epochs == 1 else 10
        share = {1: {0: 4 / now, 1: 2 / (now - 2), 2: 0.0}, 2: {0: 8 / now, 1: 4 / (now - 4), 2: 0.0}}[epochs]
        alpha = torch.zeros_like(behaviour)
        for version, part in share.items():
            alpha[batch.versions == version] = part
        torch.testing.assert_close(seen[epochs], behaviour + alpha * (current - behaviour), rtol=0, atol=1e-6)
        first = torch.where(batch.versions == 2, behaviour, masked(groups, build()))  # v_prox = v_current: itself
        torch.testing.assert_close(seen[0], first, rtol=0, atol=1e-6)

    def test_bypass_needs_no_extra_forward_pass(self, monkeypatch: pytest.MonkeyPatch) -> None:
        counts: dict[str, int] = {}
        for kind in KINDS:
            model = build()
            made = learner(model, proximal_policy=kind)
            handle = model.register_forward_hook(lambda *_, kind=kind: counts.update({kind: counts.get(kind, 0) + 1}))
            made.update(GROUPS)
            handle.remove()
        assert counts == {"bypass": 1, "recompute": 2, "log_linear": 1}


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_log_probabilities_of_sampler_and_learner_agree(temperature: float) -> None:
    groups = sampled(temperature)
    made = learner(rollouts.build(), temperature=temperature, proximal_policy="recompute")
    found = values(made.update(groups))
    assert 0.0 < found["rollout_corr/log_ratio_abs"] < 1e-4
    assert found["rollout_corr/rollout_is_eff_sample_size"] == pytest.approx(1.0, abs=1e-6)

    made = learner(rollouts.build(), temperature=temperature)
    for group in groups:
        for answer in group.trajectories:
            text = np.concatenate([group.prompt.tokens, answer.tokens])
            found_logprobs = made.logprobs(text)
            assert found_logprobs.dtype == np.float32
            assert found_logprobs.shape == (len(text) - 1,)
            np.testing.assert_allclose(found_logprobs[len(group.prompt.tokens) - 1 :], answer.logprobs, atol=1e-5)


def sampled(temperature: float) -> list[Group]:
    options = InlineOptions(n=4, max_response_length=rollouts.LENGTH, temperature=temperature)
    engine = options.build(rollouts.generator_config())
    rollouts.publish(engine, 0)
    pending = rollouts.groups(6)
    queue = rollouts.Queue(pending)
    engine.start(queue)
    engine.pump()
    engine.close()
    return [attrs.evolve(each, trajectories=tuple(queue.finished[each.number])) for each in pending]


def by_position(mask: Tensor) -> Tensor:
    """Return a different advantage for each position of an answer."""
    return torch.arange(1, mask.shape[1] + 1, dtype=torch.float32).expand(mask.shape)


def shifted(groups: Sequence[Group], by: float, answers: Sequence[int]) -> list[Group]:
    """The groups with the sampler's log-probabilities of some answers lower, so that log ρ is `by` there."""
    place, found = 0, []
    for each in groups:
        moved = []
        for answer in each.trajectories:
            off = by if place in answers else 0.0
            moved.append(attrs.evolve(answer, logprobs=answer.logprobs - np.float32(off)))
            place += 1
        found.append(attrs.evolve(each, trajectories=tuple(moved)))
    return found


LENGTHS = (2, 3, 1, 4, 1)
SUMS = (3.0, 6.0, 1.0, 10.0, 1.0)  # of the advantages of each answer


class TestCorrection:
    """All answers are on-policy but the second and the fourth, where ρ is e; each token's ratio r is 1."""

    def update(self, **options: Any) -> tuple[dict[str, float], nn.Module]:
        model = build()
        groups = shifted(on_policy(GROUPS, model), 1.0, (1, 3))
        made = learner(model, adv_estimator=f"{__name__}:by_position", proximal_policy="recompute", **options)
        return values(made.update(groups)), model

    @pytest.mark.parametrize(
        ("mode", "expected"),
        [
            ("token-mean", (3 + 1 + 1) / 11),
            ("seq-mean-token-sum", (3 + 1 + 1) / 5),
            ("seq-mean-token-sum-norm", (3 + 1 + 1) / 5 / 8),
            ("seq-mean-token-mean", (3 / 2 + 1 + 1) / 5),
            ("prompt-mean", ((3 + 1) / 6 + 1 / 5) / 2),
        ],
    )
    @pytest.mark.parametrize(
        "options",
        [
            {"rejection": {"token_k1": (0.5, 2.0)}},
            {"rejection": {"seq_mean_k3": 0.1, "token_k2": 9.0}},
            {"behaviour_weight": "mis_token", "behaviour_weight_high": 1.5},
            {"behaviour_weight": "mask_geometric"},
        ],
        ids=["rejection", "two criteria", "mis_token", "mask_geometric"],
    )
    def test_rejected_tokens_still_count_in_the_denominator(
        self, mode: str, expected: float, options: Mapping[str, Any]
    ) -> None:
        found, _ = self.update(loss_agg_mode=mode, **options)
        assert found["actor/pg_loss"] == pytest.approx(-expected, rel=1e-5)
        assert found.get("rollout_corr/rollout_rs_masked_fraction", 7 / 11) == pytest.approx(7 / 11)
        assert found["rollout_corr/rollout_is_mean"] == pytest.approx(4 / 11, rel=1e-5)
        assert found["rollout_corr/rollout_is_eff_sample_size"] == pytest.approx(4 / 11, rel=1e-5)

    def test_rejected_tokens_have_no_gradient(self) -> None:
        _, rejecting = self.update(rejection={"token_k1": (0.5, 2.0)})
        spared = build()
        groups = on_policy(GROUPS, spared)
        learner(spared, adv_estimator=f"{__name__}:by_position_of_the_others", proximal_policy="recompute").update(
            groups
        )
        torch.testing.assert_close(gradients(rejecting), gradients(spared), rtol=1e-5, atol=1e-6)

    @pytest.mark.parametrize(
        ("options", "weight"),
        [
            ({"behaviour_weight": "tis_token"}, 2.0),
            ({"behaviour_weight": "tis_token", "behaviour_weight_high": 2.5}, 2.5),
            ({"behaviour_weight": "icepop"}, np.e),
            ({"policy_loss": "decoupled_ppo"}, np.e),
            ({"policy_loss": "decoupled_ppo", "behaviour_weight_cap": 1.5}, 1.5),
            ({}, 1.0),
        ],
    )
    def test_behaviour_weights_multiply_the_loss_of_a_token(self, options: Mapping[str, Any], weight: float) -> None:
        found, _ = self.update(**options)
        expected = (3 + 6 * weight + 1 + 10 * weight + 1) / 11
        applied = weight if options else np.e  # without a weight ρ itself is reported
        assert found["actor/pg_loss"] == pytest.approx(-expected, rel=1e-5)
        assert found["rollout_corr/rollout_is_mean"] == pytest.approx((4 + 7 * applied) / 11, rel=1e-5)

    def test_divergence_of_sampler_and_proximal_policy_is_reported(self) -> None:
        found, _ = self.update()
        assert found["rollout_corr/log_ratio_abs"] == pytest.approx(7 / 11, rel=1e-5)
        assert found["rollout_corr/kl"] == pytest.approx(-7 / 11, rel=1e-5)
        assert found["rollout_corr/k3_kl"] == pytest.approx(7 / 11 * (np.e - 2), rel=1e-5)
        assert found["rollout_corr/chi2_token"] == pytest.approx((4 + 7 * np.e**2) / 11 - 1, rel=1e-5)
        assert found["actor/log_ratio_abs"] == pytest.approx(0.0, abs=1e-6)

    def test_entropy_and_kl_loss_are_not_weighted(self) -> None:
        free, _ = self.update(kl_coeff=0.5)
        rejecting, _ = self.update(kl_coeff=0.5, rejection={"token_k2": 0.0})
        assert rejecting["actor/kl_loss"] == free["actor/kl_loss"]
        assert rejecting["actor/entropy"] == free["actor/entropy"]


def by_position_of_the_others(mask: Tensor) -> Tensor:
    advantages = by_position(mask).clone()
    advantages[[1, 3]] = 0.0
    return advantages


class TestFaults:
    @pytest.mark.parametrize(
        ("algorithm", "fault"),
        [
            ({"behaviour_weight": "tis_token"}, "algorithm.behaviour_weight: .*which is 1 everywhere with"),
            ({"rejection": {"token_k2": 1.0}}, "algorithm.rejection: .*which is 1 everywhere with"),
            ({"policy_loss": "decoupled_ppo"}, "algorithm.*decoupled_ppo weighs by the ratio .* is 1 everywhere"),
            (
                {"policy_loss": "decoupled_ppo", "behaviour_weight": "icepop", "proximal_policy": "recompute"},
                "algorithm.behaviour_weight: .*a second time",
            ),
            ({"behaviour_weight_high": 2.0}, "algorithm.behaviour_weight_high: 2.0 has no effect"),
            (
                {"proximal_policy": "recomputed"},
                "algorithm.proximal_policy: expected bypass or",
            ),
            ({"overlong_buffer": 99}, "algorithm.overlong_buffer: .*99 tokens"),
            ({"ppo_epochs": 0}, "algorithm.ppo_epochs: "),
        ],
    )
    def test_conflicting_correction_options_are_refused(self, algorithm: dict[str, Any], fault: str) -> None:
        sizes = {"train_batch_size": 1, "ppo_mini_batch_size": 1, "total_steps": 1}
        named = {"task": "sort_digits", "model": "decoder", "rollout": "inline", "plugins": ["weight_sync"]}
        with pytest.raises(ConfigError, match=fault):
            composition_of(config_from_mapping({**named, "trainer": sizes, "algorithm": algorithm}))

    def test_one_answer_per_prompt_is_refused_with_grpo(self) -> None:
        sizes = {"train_batch_size": 1, "ppo_mini_batch_size": 1, "total_steps": 1}
        rollout = {"use": "inline", "n": 1}
        named = {"task": "sort_digits", "model": "decoder", "rollout": rollout, "plugins": ["weight_sync"]}
        with pytest.raises(ConfigError, match="rollout.n: 'grpo' compares the answers to a prompt"):
            composition_of(config_from_mapping({**named, "trainer": sizes}))

    def test_unknown_argument_of_an_estimator_is_refused_with_its_key(self) -> None:
        with pytest.raises(ConfigError, match=r"algorithm.adv_args.epsilom: unknown argument 'epsilom'.*'epsilon'"):
            learner(build(), adv_args={"epsilom": 1e-4})
