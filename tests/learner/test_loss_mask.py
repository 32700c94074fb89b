"""Tokens that the policy did not sample are context only: no loss, gradient or metric depends on their data."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from helpers.learners import GROUPS, LONGEST, build, drifted, gradients, group, learner, on_policy, trajectory, values
from hooktrainer.algorithms.logprobs import log_policy, of_tokens
from hooktrainer.algorithms.registry import LOSS_AGG_MODES
from hooktrainer.errors import RolloutError
from hooktrainer.learner import experience, objective
from hooktrainer.learner.batch import PaddedBatch
from hooktrainer.learner.critic import Critic
from hooktrainer.learner.micro_batches import split
from hooktrainer.models.scoring import TokenScores
from hooktrainer.ports import Group, Trajectory

KINDS: Mapping[str, dict[str, Any]] = {
    "grpo": {},
    "opo": {"adv_estimator": "opo", "overlong_buffer": 4, "kl_coeff": 0.1},
    "in reward": {"adv_estimator": "rloo", "kl_coeff": 0.1, "kl_in": "reward", "kl_estimator": "k1"},
    "whitened": {"adv_estimator": "reinforce_plus_plus", "entropy_coeff": 0.1, "proximal_policy": "log_linear"},
    "gspo": {"policy_loss": "gspo", "loss_agg_mode": "seq-mean-token-mean", "proximal_policy": "recompute"},
    "decoupled": {"policy_loss": "decoupled_ppo", "proximal_policy": "recompute", "kl_coeff": 0.1},
    "critic": {
        "adv_estimator": "gae",
        "critic_use": "value_head",
        "kl_coeff": 0.1,
        "entropy_coeff": 0.1,
        "proximal_policy": "recompute",
        "behaviour_weight": "tis_sequence",
        "rejection": {"seq_max_k3": 0.3},
    },
}
"""Options that read every tensor of a batch."""
NUMBERS = st.sampled_from([0.0, -1.0, -30.0, 5.0, 1e30, math.inf, -math.inf, math.nan])


def masked(tokens: Sequence[int], mask: Sequence[int], score: float, **options: Any) -> Trajectory:
    """Return an answer of which the tokens with a 1 were sampled."""
    return attrs.evolve(trajectory(tokens, score, **options), loss_mask=np.array(mask, np.bool_))


TOOLS = (
    group(
        [2, 3, 4],
        masked([5, 6, 3, 3, 1], [1, 1, 0, 0, 1], 1.0),
        masked([4, 2, 2], [1, 0, 0], 0.0),
        trajectory([6, 1], 0.25),
    ),
    group([2], masked([3, 3, 2, 2, 2, 2, 5, 1], [1, 1, 0, 0, 1, 1, 0, 1], 0.5, truncated=True), trajectory([1], 0.75)),
    group([4, 4], masked([2, 5], [0, 0], 1.0), masked([0, 1, 1], [0, 1, 1], 0.0), number=2),
)


def groups_of(groups: Sequence[Group] = TOOLS) -> list[Group]:
    """Return the groups as if another policy had sampled them."""
    return drifted(on_policy(groups, build()))


def trained(groups: Sequence[Group], **options: Any) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Return gradients and metrics of one update."""
    model = build(torch.float64)
    found = values(learner(model, **options).update(groups))
    return gradients(model), found


def assert_identical(one: tuple[dict[str, Tensor], Any], other: tuple[dict[str, Tensor], Any]) -> None:
    assert one[0].keys() == other[0].keys()
    assert all(torch.equal(tensor, other[0][name]) for name, tensor in one[0].items())
    assert repr(one[1]) == repr(other[1])


def changed(groups: Sequence[Group], logprob: float, version: int, seed: int) -> list[Group]:
    """Return the groups with other log-probabilities and versions of the tokens that were not sampled."""
    rows = random.Random(seed)

    def of(answer: Trajectory) -> Trajectory:
        if answer.loss_mask is None:
            return answer
        logprobs, versions = answer.logprobs.copy(), answer.versions.copy()
        for place in np.flatnonzero(~answer.loss_mask):
            logprobs[place] = logprob if rows.random() < 0.7 else rows.gauss(0, 3)
            versions[place] = version
        return attrs.evolve(answer, logprobs=logprobs, versions=versions)

    return [attrs.evolve(each, trajectories=tuple(map(of, each.trajectories))) for each in groups]


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, max_examples=8)
@given(logprob=NUMBERS, version=st.integers(-9, 9), seed=st.integers(0, 99), cut=st.sampled_from([None, 1, 2]))
def test_log_probabilities_and_versions_of_tool_tokens_change_nothing(
    kind: str, logprob: float, version: int, seed: int, cut: int | None
) -> None:
    options = {**KINDS[kind], "micro_batch_size": cut}
    found = trained(changed(groups_of(), logprob, version, seed), **options)
    assert_identical(found, trained(groups_of(), **options))
    assert all(torch.isfinite(gradient).all() for gradient in found[0].values())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("noise", [7.0, math.inf, math.nan])
def test_learner_figures_of_tool_tokens_change_nothing(
    kind: str, noise: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Log-probabilities, entropies and values of the policy, the proximal policy, the reference and the critic."""
    expected = trained(groups_of(), **KINDS[kind])
    score, value = objective.response_scores, Critic.forward

    def disturbed(values: Tensor | None, part: PaddedBatch) -> Any:
        return values if values is None else torch.where(part.mask, values, noise)

    def scores(module: Any, part: PaddedBatch, *more: Any) -> TokenScores:
        found = score(module, part, *more)
        logprobs, entropies = disturbed(found.logprobs, part), disturbed(found.entropies, part)
        return found._replace(logprobs=logprobs, entropies=entropies)

    monkeypatch.setattr(objective, "response_scores", scores)
    monkeypatch.setattr(experience, "response_scores", scores)
    monkeypatch.setattr(Critic, "forward", lambda self, part, states: disturbed(value(self, part, states), part))
    assert_identical(trained(groups_of(), **KINDS[kind]), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_loss_mask_of_sampled_tokens_only_gives_the_same_bits_as_none(kind: str) -> None:
    def with_mask(each: Group) -> Group:
        answers = (attrs.evolve(one, loss_mask=np.ones(len(one.tokens), np.bool_)) for one in each.trajectories)
        return attrs.evolve(each, trajectories=tuple(answers))

    plain = groups_of(GROUPS)
    assert_identical(trained([with_mask(each) for each in plain], **KINDS[kind]), trained(plain, **KINDS[kind]))


@pytest.mark.parametrize(
    ("kind", "mode"), [*((kind, "token-mean") for kind in KINDS), *(("critic", mode) for mode in LOSS_AGG_MODES)]
)
def test_micro_batches_of_answers_with_tool_tokens_give_the_same_update(kind: str, mode: str) -> None:
    options = {**KINDS[kind], "loss_agg_mode": mode}
    whole = trained(groups_of(), **options)
    for cut in ({"micro_batch_size": 1}, {"micro_batch_tokens": 1}, {"micro_batch_tokens": 20}):
        found = trained(groups_of(), **options, **cut)
        torch.testing.assert_close(found[0], whole[0], rtol=0, atol=1e-12)
        assert found[1] == pytest.approx(whole[1], abs=1e-12, rel=1e-12, nan_ok=True)


class TestOnlyToolTokens:
    ONLY = (group([2, 3], masked([5, 6], [0, 0], 1.0), masked([3], [0], 0.0)),)

    @pytest.mark.parametrize("kind", KINDS)
    def test_group_of_tool_tokens_trains_nothing(self, kind: str) -> None:
        model = build()
        made = learner(model, **{**KINDS[kind], "weight_decay": 0.1})
        made.update(groups_of(GROUPS))  # the optimizer has momentum
        before = [p.clone() for p in model.parameters()]
        found = values(made.update(self.ONLY))
        assert all(torch.equal(one, other) for one, other in zip(before, model.parameters(), strict=True))
        assert found["actor/updates_without_tokens"] == 1
        assert found["response_length/mean"] == 0
        assert "actor/grad_norm" not in found
        assert all(math.isfinite(value) for value in found.values())

    @pytest.mark.parametrize("kind", KINDS)
    def test_answer_of_tool_tokens_beside_others_equals_one_without_tokens(self, kind: str) -> None:
        kept = (trajectory([4, 1], 1.0), trajectory([5, 5, 1], 0.0))
        with_tools = groups_of([group([2, 3], *kept, masked([6, 6, 2, 6, 6], [0] * 5, 0.5))])
        empty = groups_of([group([2, 3], *kept, trajectory([], 0.5))])
        one, other = trained(with_tools, **KINDS[kind]), trained(empty, **KINDS[kind])
        torch.testing.assert_close(one[0], other[0], rtol=0, atol=1e-12)
        processed = {"perf/total_num_tokens", "global_seqlen/max", "global_seqlen/min"}
        assert processed <= one[1].keys()
        expected = {key: value for key, value in other[1].items() if key not in processed}
        assert {key: one[1][key] for key in expected} == pytest.approx(expected, rel=1e-12, nan_ok=True)


def test_loss_and_gradient_equal_those_of_a_plain_forward_pass_over_the_whole_answer() -> None:
    """Tool tokens are read as context, at their own positions."""
    model = build(torch.float64)
    answers = TOOLS[0].trajectories
    found = learner(model, adv_estimator="dr_grpo", policy_loss="cispo").update(groups_of(TOOLS[:1]))

    plain, scores = build(torch.float64), [answer.score for answer in answers]
    terms, sampled = [], groups_of(TOOLS[:1])[0].trajectories
    for answer in sampled:
        text = torch.tensor([[2, 3, 4, *answer.tokens.tolist()]])
        logprobs = of_tokens(log_policy(plain(text[:, :-1]), 1.0), text[:, 1:])[0, 2:]
        ratio = (logprobs.detach() - torch.from_numpy(answer.logprobs)).exp().clamp(0, 5)
        advantage = answer.score - sum(scores) / len(scores)
        mask = torch.ones(len(logprobs)) if answer.loss_mask is None else torch.from_numpy(answer.loss_mask)
        terms.append(-(ratio * advantage * logprobs)[mask.bool()])
    loss = torch.cat(terms).sum() / 6
    loss.backward()
    assert values(found)["actor/pg_loss"] == pytest.approx(loss.item(), rel=1e-7)
    expected = gradients(plain)
    for name, gradient in gradients(model).items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-6, atol=1e-9)


def test_length_figures_count_sampled_tokens_and_throughput_counts_all() -> None:
    _, found = trained(groups_of())
    assert found["response_length/mean"] == pytest.approx((3 + 1 + 2 + 5 + 1 + 0 + 2) / 7)
    assert (found["response_length/max"], found["response_length/min"]) == (5, 0)
    assert found["perf/total_num_tokens"] == (3 * 3 + 2 + 2 * 2) + (5 + 3 + 2 + 8 + 1 + 2 + 3)


def test_penalty_of_long_answers_counts_sampled_tokens() -> None:
    answers = (masked([3] * LONGEST, [1] * 4 + [0] * 4, 1.0), masked([3] * LONGEST, [1] * 6 + [0] * 2, 1.0))
    _, found = trained([group([2], *answers)], overlong_buffer=4)
    assert (found["critic/rewards/max"], found["critic/rewards/min"]) == (1.0, 0.5)


def test_tool_tokens_after_the_last_sampled_one_are_not_computed() -> None:
    long = group([2], masked([3, 1, 5, 5, 5, 5], [0, 1, 0, 0, 0, 0], 1.0), masked([4, 4, 1], [1, 0, 1], 1.0))
    batch = PaddedBatch.of([long], pad_id=0, device=torch.device("cpu"))
    (part,) = split(batch, size=None, tokens=None)
    assert part.part.tokens.tolist() == [[2, 3, 1, 5], [2, 4, 4, 1]]
    assert part.part.mask.tolist() == [[False, True, False], [True, False, True]]
    first, second = split(batch, size=None, tokens=4)
    assert [first.part.tokens.shape[1], second.part.tokens.shape[1]] == [4, 3]


def test_answers_with_tool_tokens_fill_a_micro_batch_by_the_tokens_that_are_computed() -> None:
    groups = [group([2], masked([3] * 8, [1, 0, 0, 0, 0, 0, 0, 1], 1.0), trajectory([4, 1], 1.0))]
    batch = PaddedBatch.of(groups, pad_id=0, device=torch.device("cpu"))
    assert [len(cut.part.tokens) for cut in split(batch, size=None, tokens=12)] == [1, 1]


@pytest.mark.parametrize("mask", [[True], [True] * 4, [[True] * 3]])
def test_loss_mask_of_another_length_is_refused(mask: list[Any]) -> None:
    with pytest.raises(RolloutError, match="loss_mask: expected one boolean for each of the 3 tokens, found shape"):
        attrs.evolve(trajectory([1, 2, 3], 1.0), loss_mask=np.array(mask))


@pytest.mark.parametrize("mask", [[1, 0, 1], (True, False, True), np.array([1, 0, 1])])
def test_loss_mask_of_zeros_and_ones_is_accepted(mask: Any) -> None:
    answer = attrs.evolve(trajectory([1, 2, 3], 1.0), loss_mask=mask)
    assert answer.loss_mask is not None
    assert answer.loss_mask.dtype == np.bool_
    assert answer.length == 2
