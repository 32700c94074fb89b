"""Padding, micro-batches, order and ranks change no result of a mini-batch."""

from __future__ import annotations

import copy
import importlib
import math
import multiprocessing
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, distributed

from helpers.learners import GROUPS, LONGEST, build, drifted, gradients, group, learner, on_policy, trajectory, values
from hooktrainer.algorithms.registry import LOSS_AGG_MODES
from hooktrainer.errors import NonFiniteError
from hooktrainer.learner import policy_gradient
from hooktrainer.learner.batch import PaddedBatch
from hooktrainer.learner.distributed import Communicator
from hooktrainer.learner.micro_batches import split
from hooktrainer.ports import Group

MORE = (
    *GROUPS,
    group([4, 2, 2, 5], trajectory([2, 2, 2, 2, 2, 1], 1.0), trajectory([1], 0.0), trajectory([], 0.5), number=2),
)
FULL = {
    "adv_estimator": "gae",
    "critic_use": "value_head",
    "kl_coeff": 0.1,
    "entropy_coeff": 0.1,
    "proximal_policy": "recompute",
    "behaviour_weight": "tis_sequence",
    "rejection": {"seq_max_k3": 0.3},
}
"""Options that depend on more than one token."""
KINDS: Mapping[str, dict[str, Any]] = {
    "grpo": {},
    "in reward": {"adv_estimator": "rloo", "kl_coeff": 0.1, "kl_in": "reward", "kl_estimator": "k1"},
    "gspo": {"policy_loss": "gspo", "loss_agg_mode": "seq-mean-token-mean"},
    "all": FULL,
}


def groups_of(seed: int = 0) -> list[Group]:
    """Groups that another policy sampled."""
    return drifted(on_policy(MORE, build()), seed=seed)


def trained(groups: Sequence[Group], **options: Any) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Return gradients and metrics of one update in float64."""
    model = build(torch.float64)
    found = values(learner(model, **options).update(groups))
    return gradients(model), found


def assert_same(one: tuple[Any, Any], other: tuple[Any, Any]) -> None:
    torch.testing.assert_close(one[0], other[0], rtol=0, atol=1e-12)
    assert one[1] == pytest.approx(other[1], abs=1e-12, rel=1e-12, nan_ok=True)


@pytest.mark.parametrize(
    ("kind", "mode"), [*((kind, "token-mean") for kind in KINDS), *(("all", mode) for mode in LOSS_AGG_MODES)]
)
def test_micro_batches_change_no_metric_and_no_gradient(kind: str, mode: str) -> None:
    options = {**KINDS[kind], "loss_agg_mode": mode}
    whole = trained(groups_of(), **options)
    for cut in (
        {"micro_batch_size": 1},
        {"micro_batch_size": 3},
        {"micro_batch_tokens": 1},
        {"micro_batch_tokens": 20},
    ):
        assert_same(trained(groups_of(), **options, **cut), whole)


@pytest.mark.parametrize("kind", KINDS)
def test_padding_changes_no_metric_and_no_gradient(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    groups = groups_of()
    whole = trained(groups, **KINDS[kind])
    monkeypatch.setattr(policy_gradient.PaddedBatch, "of", wider)
    monkeypatch.setattr(policy_gradient, "split", lambda batch, **_: [uncut(batch)])

    assert_same(trained(groups, **KINDS[kind]), whole)


_of = PaddedBatch.of


def wider(groups: Sequence[Group], **options: Any) -> PaddedBatch:
    """Return the batch with 3 more columns of prompt and 2 of response, filled with arbitrary tokens."""
    batch = _of(groups, **options)
    rows = len(batch.tokens)
    left, right = torch.full((rows, 3), 5), torch.full((rows, 2), 6)

    def appended(values: Tensor, value: float) -> Tensor:
        return torch.cat([values, torch.full((rows, 2), value, dtype=values.dtype)], dim=1)

    return attrs.evolve(
        batch,
        tokens=torch.cat([left, batch.tokens, right], dim=1),
        left_pad=torch.full((rows,), 3) if batch.left_pad is None else batch.left_pad + 3,
        responses=torch.cat([batch.responses, right], dim=1),
        mask=appended(batch.mask, False),
        behaviour=appended(batch.behaviour, torch.nan),
        versions=appended(batch.versions, -1),
    )


def uncut(batch: PaddedBatch) -> object:
    """Return the batch as one micro-batch with all its padding."""
    (cut,) = split(batch, size=None, tokens=None)
    return attrs.evolve(cut, width=batch.mask.shape[1], part=batch)


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, max_examples=8)
@given(seed=st.integers(0, 10**6))
def test_order_of_groups_and_answers_changes_no_metric_and_no_gradient(kind: str, seed: int) -> None:
    rows = random.Random(seed)
    shuffled = [
        attrs.evolve(each, trajectories=tuple(rows.sample(each.trajectories, len(each.trajectories))))
        for each in rows.sample(groups_of(), len(MORE))
    ]
    assert_same(trained(shuffled, **KINDS[kind]), trained(groups_of(), **KINDS[kind]))


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 9)), min_size=1, max_size=12), st.integers(1, 40))
def test_split_by_tokens_respects_the_budget_and_keeps_every_answer(
    lengths: list[tuple[int, int]], budget: int
) -> None:
    groups = [group([2] * prompt, trajectory([3] * answer, 1.0)) for prompt, answer in lengths]
    batch = PaddedBatch.of(groups, pad_id=0, device=torch.device("cpu"))
    parts = split(batch, size=None, tokens=budget)

    rows = [row for cut in parts for row in torch.arange(len(lengths))[cut.rows].tolist()]
    with_tokens = {row for row, (_, answer) in enumerate(lengths) if answer}
    assert len(rows) == len(set(rows))
    assert with_tokens <= set(rows)
    for cut in parts:
        assert len(cut.part.tokens) == 1 or cut.part.tokens.numel() <= budget
        torch.testing.assert_close(cut.part.mask, cut.select(batch.mask))
        assert cut.part.mask.sum() == batch.mask[cut.rows].sum()


def test_sorting_by_length_saves_padding() -> None:
    lengths = [1, 8, 1, 8, 1, 8, 1, 8]
    groups = [group([2], trajectory([3] * length, 1.0)) for length in lengths]
    batch = PaddedBatch.of(groups, pad_id=0, device=torch.device("cpu"))
    padded = {key: sum(cut.part.tokens.numel() for cut in split(batch, **by)) for key, by in WAYS.items()}
    assert padded == {"tokens": 4 * 9 + 4 * 2, "size": 8 * 9}


WAYS = {"tokens": {"size": None, "tokens": 36}, "size": {"size": 4, "tokens": None}}


@pytest.mark.parametrize(
    "change", [lambda score: score + 2.0**40, lambda score: score * 2.0**100], ids=["offset", "scale"]
)
def test_offset_and_scale_of_scores_do_not_change_normalized_advantages(change: Callable[[float], float]) -> None:
    def answers(change: Callable[[float], float]) -> list[Group]:
        return [group([2, 3], *(trajectory([token, 1], change(token - 3.0)) for token in (3, 4, 5)))]

    expected, metrics = trained(answers(float))
    found, same = trained(answers(change))
    assert metrics["actor/grad_norm"] > 0.01
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-6)
    assert same["critic/advantages/max"] == pytest.approx(metrics["critic/advantages/max"], rel=1e-4)


class TestWithoutTokens:
    @pytest.mark.parametrize("kind", ["grpo", "in reward", "gspo"])
    def test_answers_without_tokens_do_not_change_the_policy(self, kind: str) -> None:
        model = build()
        before = [p.clone() for p in model.parameters()]
        empty = [group([2, 3], trajectory([], 1.0), trajectory([], 0.0))]
        found = values(learner(model, **KINDS[kind]).update(empty))
        assert found["actor/updates_without_tokens"] == 1
        assert "actor/grad_norm" not in found
        assert all(torch.equal(one, other) for one, other in zip(before, model.parameters(), strict=True))

    @pytest.mark.parametrize(
        ("estimator", "critic"),
        [("grpo", "none"), ("reinforce_plus_plus", "none"), ("reinforce_plus_plus_baseline", "none"), ("gae", "model")],
    )
    def test_no_update_is_made_if_all_answers_are_filtered(self, estimator: str, critic: str) -> None:
        model = build()
        options = {"overlong_buffer": 2, "kl_coeff": 0.1, "weight_decay": 0.1, "ppo_epochs": 2}
        made = learner(model, adv_estimator=estimator, critic_use=critic, overlong_filtering=True, **options)
        ok = [group([2, 3], trajectory([5, 1], 1.0), trajectory([4, 4, 1, 1], 0.5))]
        cut_off = [group([2, 3], *(trajectory([3] * LONGEST, score, truncated=True) for score in (1.0, 0.5)))]
        assert values(made.update(ok))["actor/updates_without_tokens"] == 0  # the optimizer is warm
        before = copy.deepcopy(made.state_dict())

        found = values(made.update(cut_off))

        torch.testing.assert_close(made.state_dict(), before, rtol=0, atol=0)
        assert found["actor/updates_without_tokens"] == 2
        assert found["critic/score/mean"] == 0.75
        assert not found.keys() & {"actor/grad_norm", "actor/pg_loss", "actor/entropy", "critic/advantages/mean"}
        assert all(math.isfinite(value) for value in found.values())

    def test_filtered_answer_counts_in_the_baseline_with_kl_in_reward(self) -> None:
        answers = (trajectory([5, 1], 1.0), trajectory([4, 4, 1, 1], 1.0, truncated=True), trajectory([3], 0.0))
        for options in ({}, {"kl_coeff": 1e-9, "kl_in": "reward", "kl_estimator": "k1"}):
            _, found = trained([group([2, 3], *answers)], adv_estimator="dr_grpo", overlong_filtering=True, **options)
            assert found["critic/advantages/max"] == pytest.approx(1 / 3, abs=1e-7)
            assert found["critic/advantages/min"] == pytest.approx(-2 / 3, abs=1e-7)

    def test_filtered_answers_count_only_in_the_baseline(self) -> None:
        cut_off = trajectory([3, 3, 3, 3], 0.5, truncated=True)
        kept = (trajectory([4, 1], 1.0), trajectory([5, 5, 1], 0.0))
        with_it = on_policy([group([2, 3], *kept, cut_off)], build())
        without = on_policy([group([2, 3], *kept)], build())
        options = {"adv_estimator": "dr_grpo", "loss_agg_mode": "seq-mean-token-mean"}

        filtered = trained(with_it, **options, overlong_filtering=True)
        assert_same((filtered[0], {}), (trained(without, **options)[0], {}))  # 0.5 is the mean of the others
        assert filtered[1]["response_length/clip_ratio"] == pytest.approx(1 / 3)


def _rank(rank: int, shares: Sequence[Sequence[Group]], options: dict[str, Any], folder: str) -> None:
    torch.set_num_threads(1)
    # Default arguments of this module keep a group that exists when it is imported, as the optimizer does. Threads of a
    # group that is kept outlive `destroy_process_group`, and can abort the interpreter at its exit.
    importlib.import_module("torch.distributed.nn")
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=len(shares))
    try:
        for place, each in enumerate(options):
            model = build(torch.float64)
            made = learner(model, **each, communicator=Communicator(sum=all_reduced, rank=rank, size=len(shares)))
            found = values(made.update(shares[rank]))
            torch.save((gradients(model), found), f"{folder}/{place}-{rank}.pt")
    finally:
        distributed.destroy_process_group()


def all_reduced(tensor: Tensor) -> Tensor:
    summed = tensor.clone()
    distributed.all_reduce(summed)
    return summed


@pytest.mark.parametrize(
    "shares",
    [
        pytest.param((MORE, ()), id="all, none", marks=pytest.mark.slow),
        pytest.param(((), MORE), id="none, all", marks=pytest.mark.slow),
        pytest.param((MORE[:1], MORE[1:]), id="1, 2", marks=pytest.mark.slow),
    ],
)
def test_two_ranks_have_the_loss_and_gradient_of_one_rank(shares: Sequence[Sequence[Group]], tmp_path: Path) -> None:
    together = groups_of()
    by_number = {each.number: each for each in together}
    split = [[by_number[each.number] for each in share] for share in shares]
    options = [{**KINDS[kind], "loss_agg_mode": mode} for kind in ("grpo", "all") for mode in LOSS_AGG_MODES]
    options += [{"adv_estimator": "reinforce_plus_plus"}, KINDS["in reward"], {**KINDS["in reward"], "ppo_epochs": 2}]
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_rank, args=(rank, split, options, str(tmp_path))) for rank in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
    assert [worker.exitcode for worker in workers] == [0, 0]

    for place, each in enumerate(options):
        expected, metrics = trained(together, **each)
        for rank in range(2):
            found, reported = torch.load(tmp_path / f"{place}-{rank}.pt", weights_only=False)
            for name, gradient in expected.items():
                # A second update is of weights that AdamW moved, which divides rounding errors by small numbers.
                torch.testing.assert_close(found[name], gradient, rtol=0, atol=1e-8 if "ppo_epochs" in each else 1e-12)
            for key in ("actor/pg_loss", "actor/grad_norm", "actor/entropy", "actor/ppo_kl", "critic/advantages/mean"):
                assert reported[key] == pytest.approx(metrics[key], abs=1e-8 if "ppo_epochs" in each else 1e-12)


class Meeting:
    """Run two ranks as threads."""

    def __init__(self) -> None:
        self._barrier = threading.Barrier(2, timeout=30)
        self._given: dict[int, Tensor] = {}

    def rank(self, rank: int) -> Communicator:
        def summed(tensor: Tensor) -> Tensor:
            self._given[rank] = tensor
            self._barrier.wait()
            total = self._given[0] + self._given[1]
            self._barrier.wait()
            return total

        return Communicator(sum=summed, rank=rank, size=2)

    def both(self, work: Callable[[int], Any]) -> list[Any]:
        with ThreadPoolExecutor(2) as pool:
            return [future.result(60) for future in [pool.submit(work, rank) for rank in range(2)]]


def test_totals_cover_all_ranks_and_groups_are_numbered_across_ranks() -> None:
    meeting = Meeting()
    shares = (([3, 0, 2], [0, 0, 1], 2), ([4], [0], 1))
    found = meeting.both(lambda rank: meeting.rank(rank).totals(*shares[rank]))
    for (totals, first), place in zip(found, (0, 2), strict=True):
        assert (totals.tokens, totals.sequences, totals.prompt_tokens, first) == (9, 3, (3, 2, 4), place)
    alone, first = Communicator().totals(*shares[0])
    assert (alone.tokens, alone.sequences, alone.prompt_tokens, first) == (5, 2, (3, 2), 0)


@pytest.mark.parametrize("options", [{}, KINDS["in reward"]], ids=("score", "divergence"))
@pytest.mark.parametrize("skips", [True, False])
def test_non_finite_loss_on_one_rank_ends_the_update_on_all_ranks(skips: bool, options: dict[str, Any]) -> None:
    meeting = Meeting()
    answer = trajectory([5, 1], 1.0 if options else math.inf)
    if options:  # the sampler's log-probability stands for the proximal policy in the divergence
        answer = attrs.evolve(answer, logprobs=np.array([math.nan, -1.0], np.float32))
    shares = [[group([2, 3], answer, trajectory([4], 0.0))], list(GROUPS[:1])]

    def work(rank: int) -> str:
        made = learner(build(torch.float64), communicator=meeting.rank(rank), ppo_epochs=3, **options)
        made.skips_nonfinite = skips
        try:
            found = values(made.update(shares[rank]))
        except NonFiniteError as error:
            return str(error)
        return f"{found['actor/skipped_updates']:.0f} skipped, {made.state_dict()['updates']} made"

    found = meeting.both(work)
    if skips:
        assert found == ["3 skipped, 0 made"] * 2
    else:
        assert found[0].startswith("the reward of answer 0 is ")
        assert found[1].startswith("a reward of another rank is not finite")


def six_groups() -> list[Group]:
    """Six groups of four answers: 59 tokens and a sum of scores of 9.25 in the first four, 24 and 2.5 in the others."""
    lengths = [4] * 11 + [3] * 13
    scores = [1.0] * 9 + [0.25] + [0.0] * 6 + [1.0, 1.0, 0.5] + [0.0] * 5
    answers = [
        attrs.evolve(trajectory([2 + place % 5] * length, score), metrics={"late": 1.0} if place > 15 else {})
        for place, (length, score) in enumerate(zip(lengths, scores, strict=True))
    ]
    found = [group([2, 3], *answers[4 * number : 4 * number + 4], number=number) for number in range(6)]
    return [
        attrs.evolve(one, prompt=attrs.evolve(one.prompt, example=attrs.evolve(one.prompt.example, source=source)))
        for one, source in zip(on_policy(found, build()), "aaaaab", strict=True)
    ]


@pytest.mark.parametrize(
    ("split_at", "options"), [(4, {}), (0, {}), (1, {"adv_estimator": "gae", "critic_use": "value_head"})]
)
def test_two_ranks_report_the_metrics_of_one_rank(split_at: int, options: dict[str, Any]) -> None:
    meeting, groups = Meeting(), six_groups()
    shares = groups[:split_at], groups[split_at:]
    found = meeting.both(
        lambda rank: values(
            learner(build(torch.float64), communicator=meeting.rank(rank), **options).update(shares[rank])
        )
    )
    one = values(learner(build(torch.float64), **options).update(groups))

    assert one["critic/score/mean"] == pytest.approx(0.4896, abs=5e-5)
    assert one["response_length/mean"] == pytest.approx(3.458, abs=5e-4)
    assert [one[key] for key in ("perf/total_num_tokens", "global_seqlen/max", "global_seqlen/min")] == [131] * 3
    assert {"critic/advantages/max", "reward/late/mean", "critic/score/b/mean", "data/groups/b"} <= one.keys()
    assert ("critic/returns/mean" in one) == bool(options)
    assert found == [pytest.approx(one, abs=1e-9)] * 2
