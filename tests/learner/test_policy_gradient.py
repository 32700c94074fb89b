"""The policy-gradient learner: gradients, metrics, and updates that are not finite."""

from __future__ import annotations

import math
import sys

import attrs
import numpy as np
import pytest
import torch
from torch import Tensor

from helpers.learners import CPU, GROUPS, build, copied, group, learner, logprobs_of, on_policy, trajectory
from hooktrainer import ports
from hooktrainer.algorithms import advantages as of_answers
from hooktrainer.algorithms.advantages import grpo
from hooktrainer.algorithms.options import AlgorithmOptions
from hooktrainer.algorithms.policy_losses import TokenLoss, ppo_clip
from hooktrainer.errors import ConfigError, NonFiniteError
from hooktrainer.learner.batch import PaddedBatch
from hooktrainer.learner.batch_metrics import batch_metrics
from hooktrainer.models.policy import full_state
from hooktrainer.ports import Group


class TestBatch:
    def test_prompts_are_left_padded_and_responses_right_padded(self) -> None:
        batch = PaddedBatch.of(GROUPS, pad_id=0, device=CPU)
        assert batch.tokens.tolist() == [
            [2, 3, 4, 5, 1, 0, 0],
            [2, 3, 4, 4, 4, 1, 0],
            [2, 3, 4, 6, 0, 0, 0],
            [0, 0, 2, 3, 3, 3, 3],
            [0, 0, 2, 1, 0, 0, 0],
        ]
        assert batch.left_pad is not None
        assert batch.left_pad.tolist() == [0, 0, 0, 2, 2]
        assert batch.mask.sum(dim=1).tolist() == [2, 3, 1, 4, 1]
        assert batch.groups.tolist() == [0, 0, 0, 1, 1]
        assert batch.scores.tolist() == [1.0, 0.0, 0.25, 0.5, 0.75]
        assert torch.equal(batch.behaviour.isnan(), ~batch.mask)

    def test_prompts_of_one_length_need_no_padding(self) -> None:
        assert PaddedBatch.of(GROUPS[:1], pad_id=0, device=CPU).left_pad is None


class TestUpdate:
    def test_learner_implements_its_port(self) -> None:
        assert isinstance(learner(build()), ports.Learner)

    @pytest.mark.parametrize("temperature", [1.0, 0.5])
    def test_on_policy_update_has_the_gradient_of_reinforce_with_grpo_advantages(self, temperature: float) -> None:
        model, reference = build(), build()
        groups = on_policy(GROUPS, model, temperature)
        batch = PaddedBatch.of(groups, pad_id=0, device=CPU)
        advantages = grpo(batch.scores, torch.from_numpy(batch.groups))
        weighted = torch.where(batch.mask, logprobs_of(batch, reference, temperature) * advantages[:, None], 0.0)
        (-weighted.sum() / 11).backward()

        metrics = learner(model, temperature=temperature).update(groups)

        for own, expected in zip(model.parameters(), reference.parameters(), strict=True):
            torch.testing.assert_close(own.grad, expected.grad, rtol=1e-4, atol=1e-6)
        assert metrics["actor/pg_clipfrac"].value == 0.0
        assert metrics["actor/ppo_kl"].value == pytest.approx(0.0, abs=1e-6)
        mean = float((batch.mask * advantages[:, None]).sum()) / 11
        assert metrics["actor/pg_loss"].value == pytest.approx(-mean, abs=1e-6)

    @pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum"])
    @pytest.mark.parametrize("size", [1, 2, 3])
    def test_micro_batches_change_neither_weights_nor_metrics(self, mode: str, size: int) -> None:
        whole, split = build(), build()
        groups = on_policy(GROUPS, whole, temperature=0.8)

        expected = learner(whole, loss_agg_mode=mode).update(groups)
        found = learner(split, loss_agg_mode=mode, micro_batch_size=size).update(groups)

        for one, other in zip(whole.parameters(), split.parameters(), strict=True):
            torch.testing.assert_close(one.grad, other.grad, rtol=0, atol=1e-6)
        assert {key: metric.value for key, metric in found.items()} == pytest.approx(
            {key: metric.value for key, metric in expected.items()}, abs=1e-5
        )

    def test_answers_with_higher_scores_become_more_likely(self) -> None:
        model = build()
        groups = on_policy(GROUPS[:1], model)
        batch = PaddedBatch.of(groups, pad_id=0, device=CPU)
        before = logprobs_of(batch, model, 1.0).detach()
        learner(model, lr=1e-3).update(groups)
        change = torch.where(batch.mask, logprobs_of(batch, model, 1.0).detach() - before, 0.0).sum(dim=1)
        assert change[0] > 0 > change[1]

    def test_reported_grad_norm_is_the_norm_before_clipping(self) -> None:
        free, clipped = build(), build()
        groups = on_policy(GROUPS, free)
        norm = learner(free).update(groups)["actor/grad_norm"].value
        assert learner(clipped, grad_clip=norm / 10).update(groups)["actor/grad_norm"].value == pytest.approx(norm)
        total = math.sqrt(sum(float(p.grad.square().sum()) for p in clipped.parameters() if p.grad is not None))
        assert total == pytest.approx(norm / 10, rel=1e-4)

    def test_weights_share_memory_with_the_module(self) -> None:
        model = build()
        weights = learner(model).weights()
        assert {name: tensor.data_ptr() for name, tensor in weights.items()} == {
            name: tensor.data_ptr() for name, tensor in full_state(model).items()
        }
        assert not any(tensor.requires_grad for tensor in weights.values())

    def test_groups_of_one_answer_do_not_change_the_policy(self) -> None:
        model = build()
        before = {name: tensor.clone() for name, tensor in full_state(model).items()}
        learner(model).update([group([2], trajectory([3, 1], 1.0))])
        assert all(torch.equal(before[name], tensor) for name, tensor in full_state(model).items())

    def test_entropy_bonus_increases_the_entropy_and_is_excluded_from_pg_loss(self) -> None:
        alike = [group([2, 3], trajectory([4, 1], 0.5), trajectory([5, 5, 1], 0.5))]
        made = learner(build(), lr=1e-3, entropy_coeff=0.1)
        first, second = made.update(alike), made.update(alike)
        assert first["actor/pg_loss"].value == second["actor/pg_loss"].value == 0.0
        assert first["actor/grad_norm"].value > 0.0
        assert second["actor/entropy"].value > first["actor/entropy"].value

    def test_user_defined_advantage_estimator_is_used(self) -> None:
        metrics = learner(build(), adv_estimator=f"{__name__}:all_ones").update(GROUPS)
        assert metrics["critic/advantages/mean"].value == metrics["critic/advantages/min"].value == 1.0

    def test_an_unknown_algorithm_is_refused_by_its_options(self) -> None:
        with pytest.raises(ConfigError, match=r"no advantage estimator has the name 'gppo'; .* Did you mean 'grpo'\?"):
            AlgorithmOptions(adv_estimator="gppo")


def all_ones(rewards: Tensor) -> Tensor:
    return torch.ones_like(rewards)


class TestFaultsBeforeTheFirstUpdate:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"adv_args": {"epsilon": -1.0}}, "algorithm.adv_args.epsilon: .* at least 0, found -1.0"),
            ({"adv_args": {"epsilon": math.nan}}, "algorithm.adv_args.epsilon: .*found nan"),
            (
                {"behaviour_weight": "icepop", "behaviour_weight_high": 0.1, "proximal_policy": "recompute"},
                "algorithm.behaviour_weight: .*found low 0.5 and high 0.1",
            ),
            (
                {"behaviour_weight": "tis_token", "behaviour_weight_low": 3.0, "proximal_policy": "recompute"},
                "algorithm.behaviour_weight: .*found low 3.0 and high 2.0",
            ),
            (
                {"policy_loss": "cispo", "policy_loss_args": {"cispo_min_ratio": 9.0}},
                "algorithm.policy_loss: expected 0 <= cispo_min_ratio <= cispo_max_ratio, found 9.0",
            ),
            ({"overlong_buffer": 3, "max_response_length": None}, "algorithm.overlong_buffer: .*give max_response_len"),
            ({"overlong_buffer": 3, "max_response_length": 2}, "algorithm.overlong_buffer: .*max_length 2"),
            (
                {"loss_agg_mode": "seq-mean-token-sum-norm", "max_response_length": 0},
                "algorithm.loss_agg_mode: max_response_length must be at least 1 token",
            ),
            (
                {"policy_loss": f"{__name__}:plain", "clip_ratio_low": 0.2, "cispo_max_ratio": 2.0},
                "algorithm.cispo_max_ratio: 2.0 has no effect: .* and of none of grpo, .*:plain, token-mean",
            ),
        ],
    )
    def test_invalid_or_unused_options_are_refused(self, options: dict[str, object], message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            learner(build(), **options)

    def test_option_required_by_a_user_defined_function_is_accepted(self) -> None:
        assert learner(build(), policy_loss=f"{__name__}:plain", clip_ratio_low=0.5).update(GROUPS)


def plain(logprobs: Tensor, proximal: Tensor, advantages: Tensor, mask: Tensor, *, clip_ratio_low: float) -> TokenLoss:
    return ppo_clip(logprobs, proximal, advantages, mask, clip_ratio_low=clip_ratio_low)


class TestNotFinite:
    def test_non_finite_loss_raises_and_leaves_the_weights_unchanged(self) -> None:
        model = build()
        before = copied(model)

        with pytest.raises(NonFiniteError, match=r"actor/pg_loss is nan: no update was made .* actor/lr 0.01"):
            learner(model).update([broken(math.nan)])

        assert all(torch.equal(before[name], tensor) for name, tensor in full_state(model).items())

    @pytest.mark.parametrize("score", [math.nan, math.inf])
    def test_non_finite_score_is_refused_before_the_update(self, score: float) -> None:
        model = build()
        with pytest.raises(NonFiniteError, match="reward of answer 0 is (nan|inf)"):
            learner(model).update([group([2], trajectory([3, 1], score), trajectory([4, 1], 0.0))])

    def test_a_non_finite_gradient_is_distinguished_from_a_non_finite_loss(self) -> None:
        model = build()
        next(model.parameters()).register_hook(lambda gradient: torch.full_like(gradient, math.inf))
        with pytest.raises(NonFiniteError, match="actor/grad_norm is inf"):
            learner(model).update(on_policy(GROUPS, model))

    @pytest.mark.parametrize("adv_estimator", ["grpo", "reinforce_plus_plus"])
    def test_non_finite_update_is_skipped_and_counted_with_skips_nonfinite(self, adv_estimator: str) -> None:
        model = build()
        made = learner(model, adv_estimator=adv_estimator)
        made.skips_nonfinite = True
        before = copied(model)
        score = group([2], trajectory([3, 1], math.inf), trajectory([4, 1], 0.0))

        skipped = [made.update([each])["actor/skipped_updates"].value for each in (broken(math.nan), score)]

        assert skipped == [1, 1]
        assert all(torch.equal(before[name], tensor) for name, tensor in full_state(model).items())
        assert made.update(GROUPS)["actor/skipped_updates"].value == 0
        assert made.state_dict()["updates"] == 1

    def test_every_skipped_epoch_is_counted(self) -> None:
        made = learner(build(), ppo_epochs=3)
        made.skips_nonfinite = True
        score = group([2], trajectory([3, 1], math.inf), trajectory([4, 1], 0.0))
        assert [made.update([each])["actor/skipped_updates"].value for each in (broken(math.nan), score)] == [3, 3]

    def test_a_skipped_update_changes_nothing(self) -> None:
        skipping, spared = build(), build()
        first, second = learner(skipping, lr_warmup=5), learner(spared, lr_warmup=5)
        first.skips_nonfinite = True
        for groups in (GROUPS, [broken(math.nan)], GROUPS):
            first.update(groups)
        for _ in range(2):
            second.update(GROUPS)

        assert all(
            torch.equal(one, other) for one, other in zip(skipping.parameters(), spared.parameters(), strict=True)
        )


def broken(logprob: float) -> Group:
    """Return a group with an invalid log-probability of the sampler."""
    answer = trajectory([3, 1], 1.0)
    return group([2], attrs.evolve(answer, logprobs=np.array([logprob, 0.0], np.float32)), trajectory([4, 1], 0.0))


class TestMetrics:
    def test_scores_and_lengths_are_reported(self) -> None:
        values = {key: metric.value for key, metric in batch_metrics(GROUPS).items()}
        assert values == pytest.approx(
            {
                "critic/score/mean": 0.5,
                "critic/score/max": 1.0,
                "critic/score/min": 0.0,
                "critic/exact_match/mean": 0.2,
                "critic/rewards/mean": 0.5,
                "critic/rewards/max": 1.0,
                "critic/rewards/min": 0.0,
                "response_length/mean": 11 / 5,
                "response_length/max": 4,
                "response_length/min": 1,
                "response_length/clip_ratio": 0.2,
                "prompt_length/mean": 11 / 5,
                "prompt_length/max": 3,
                "prompt_length/min": 1,
                "perf/total_num_tokens": 22,
                "global_seqlen/max": 22,
                "global_seqlen/min": 22,
            }
        )

    def test_only_truncated_answers_count_in_clip_ratio(self) -> None:
        short = group([2], trajectory([1] * 3, 0.0), trajectory([1] * 5, 0.0), trajectory([1] * 7, 0.0))
        cut = [trajectory([1] * 16, 0.0, truncated=True) for _ in range(2)]
        assert batch_metrics([short])["response_length/clip_ratio"].value == 0.0
        mixed = group([2], trajectory([1] * 3, 0.0), *cut)
        assert batch_metrics([mixed])["response_length/clip_ratio"].value == pytest.approx(2 / 3)

    def test_means_of_tokens_and_of_answers_merge_by_their_own_weights(self) -> None:
        first, second = (learner(build(), lr=1e-9).update([each]) for each in GROUPS)
        score = first["critic/score/mean"].merge(second["critic/score/mean"])
        entropy = first["actor/entropy"].merge(second["actor/entropy"])
        assert score.value == pytest.approx((1.25 + 1.25) / 5)
        assert entropy.value == pytest.approx(
            (6 * first["actor/entropy"].value + 5 * second["actor/entropy"].value) / 11, rel=1e-6
        )

    @pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"])
    def test_kl_metric_is_a_token_mean_in_every_aggregation_mode(self, mode: str) -> None:
        model, started = build(), build()
        torch.nn.init.normal_(model.head.weight, generator=torch.Generator().manual_seed(1))
        made = learner(model, kl_coeff=0.1, loss_agg_mode=mode)
        model.load_state_dict({name: tensor * 1.1 for name, tensor in model.state_dict().items()})
        batch = PaddedBatch.of(GROUPS, pad_id=0, device=CPU)
        started.load_state_dict({name: tensor / 1.1 for name, tensor in model.state_dict().items()})
        d = logprobs_of(batch, started, 1.0) - logprobs_of(batch, model, 1.0)
        k3 = torch.where(batch.mask, d.exp() - d - 1, 0.0).sum().detach() / 11
        assert made.update(GROUPS)["actor/kl"].value == pytest.approx(float(k3), rel=1e-3)

    def test_an_update_reads_the_device_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        made = learner(build())
        made.update(GROUPS)
        reads: list[str] = []

        def watch(name: str) -> None:
            own = getattr(Tensor, name)

            def counted(tensor: Tensor, *args: object) -> object:
                # The scores and the functions that read only them are on the host.
                if sys._getframe(1).f_code.co_filename != of_answers.__file__:
                    reads.append(name)
                return own(tensor, *args)

            monkeypatch.setattr(Tensor, name, counted)

        for name in ("tolist", "item", "cpu", "numpy", "__bool__", "__float__", "__int__", "__index__"):
            watch(name)
        made.update(GROUPS)
        assert reads == ["tolist"]
