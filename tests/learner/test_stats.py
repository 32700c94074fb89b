"""Stats of a policy loss: each has its own reduction, which its name does not change."""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import Tensor

import hooktrainer
from helpers.learners import GROUPS, build, drifted, learner, on_policy, values
from hooktrainer.algorithms.aggregation import Totals
from hooktrainer.algorithms.policy_losses import TokenLoss, ppo_clip
from hooktrainer.algorithms.stats import RESERVED_METRICS, TokenMax, TokenMean, TokenMin, TokenStat, TokenSum
from hooktrainer.errors import ConfigError
from hooktrainer.learner.distributed import Communicator
from hooktrainer.learner.statistics import UpdateStatistics
from hooktrainer.learner.update_metrics import update_metrics
from hooktrainer.metrics import Record, RuleTable, derive

# GROUPS have 11 tokens in 5 answers; padding is never trained on.
TOKENS = 11
OWN_NAMES = {
    "plain": "actor/plain",
    "bc_loss": "actor/bc_loss",
    "my/pg_loss": "my/pg_loss",
    "gap/max": "gap/max",
    "gap/min": "gap/min",
    "extra/grad_norm": "extra/grad_norm",
    "returns_sq": "actor/returns_sq",
    "a/lr": "a/lr",
    "steps_total": "actor/steps_total",
    "answer_mean": "actor/answer_mean",
}
"""Names of stats, and of the metrics that they are reported as."""


def odd_names(logprobs: Tensor, proximal: Tensor, advantages: Tensor, mask: Tensor) -> TokenLoss:
    result = ppo_clip(logprobs, proximal, advantages, mask)
    ones = torch.where(mask, torch.ones_like(logprobs.detach()), torch.nan)
    names = ("aux_loss", "ratio/max", "ratio/min", "mine/grad_norm", "returns_sq", "divergence/weight", "vf_error")
    return TokenLoss(result.loss, {**result.stats, **dict.fromkeys(names, ones)})


def own_names(logprobs: Tensor, proximal: Tensor, advantages: Tensor, mask: Tensor) -> TokenLoss:
    result = ppo_clip(logprobs, proximal, advantages, mask)
    ones = torch.where(mask, torch.ones_like(logprobs.detach()), torch.nan)
    return TokenLoss(result.loss, dict.fromkeys(OWN_NAMES, ones))


def reductions(logprobs: Tensor, proximal: Tensor, advantages: Tensor, mask: Tensor) -> TokenLoss:
    result = ppo_clip(logprobs, proximal, advantages, mask)
    shown = torch.where(mask, logprobs.detach(), torch.nan)
    kinds = {"mean": TokenMean, "sum": TokenSum, "max": TokenMax, "min": TokenMin}
    return TokenLoss(result.loss, {"plain": shown, **{f"by_{key}": kind(shown) for key, kind in kinds.items()}})


def infinite(logprobs: Tensor, proximal: Tensor, advantages: Tensor, mask: Tensor) -> TokenLoss:
    result = ppo_clip(logprobs, proximal, advantages, mask)
    return TokenLoss(result.loss, dict.fromkeys(("bc", "bc_loss"), torch.full_like(logprobs.detach(), math.inf)))


def not_always(logprobs: Tensor, mask: Tensor) -> TokenLoss:
    stats = {"long": torch.ones_like(logprobs.detach())} if mask.shape[1] == 4 else {}
    return TokenLoss(-logprobs, stats)


def test_stats_are_averaged_independently_of_their_names() -> None:
    plain = values(learner(build()).update(on_policy(GROUPS, build())))
    found = values(learner(build(), policy_loss=f"{__name__}:odd_names").update(on_policy(GROUPS, build())))

    assert found.items() >= plain.items()
    assert {key: found[key] for key in found.keys() - plain.keys()} == dict.fromkeys(
        (
            "actor/aux_loss", "ratio/max", "ratio/min", "mine/grad_norm", "actor/returns_sq", "divergence/weight",
            "actor/vf_error",
        ),
        1.0,
    )  # fmt: skip


@pytest.mark.parametrize("options", [{}, {"micro_batch_size": 1}, {"ppo_epochs": 2}, {"loss_agg_mode": "prompt-mean"}])
def test_a_stat_of_one_per_token_is_one_in_the_row(options: dict[str, object]) -> None:
    metrics = learner(build(), policy_loss=f"{__name__}:own_names", **options).update(on_policy(GROUPS, build()))
    record = Record(step=1)
    for samples in (5, 3):
        record.add(RuleTable().to_metrics(metrics, samples))
    row = record.seal(derive)
    assert {name: row[name] for name in OWN_NAMES.values()} == dict.fromkeys(OWN_NAMES.values(), 1.0)


@pytest.mark.parametrize("skips", [False, True])
def test_non_finite_stat_does_not_skip_the_update(skips: bool) -> None:
    made = learner(build(), policy_loss=f"{__name__}:infinite")
    made.skips_nonfinite = skips
    found = made.update(on_policy(GROUPS, build()))
    assert made.state_dict()["updates"] == 1
    assert found["actor/bc"].value == found["actor/bc_loss"].value == math.inf


def without_stats(logprobs: Tensor, proximal: Tensor, advantages: Tensor, mask: Tensor) -> TokenLoss:
    return TokenLoss(ppo_clip(logprobs, proximal, advantages, mask).loss)


def test_a_loss_need_not_report_stats() -> None:
    found = values(learner(build(), policy_loss=f"{__name__}:without_stats").update(on_policy(GROUPS, build())))
    assert "actor/pg_loss" in found
    assert "actor/ppo_kl" not in found


@pytest.mark.parametrize("stat", [TokenMax, TokenMin, TokenMean, TokenSum])
def test_a_stat_over_no_token_is_not_infinite(stat: type[TokenStat]) -> None:
    statistics = UpdateStatistics()
    statistics.add_token_stat("mine", stat(torch.ones(2, 3)), torch.zeros(2, 3, dtype=torch.bool))
    metrics = update_metrics(statistics.to_host(), Totals(0, 0), "token-mean")
    assert metrics["actor/mine"].value in (None, 0.0)


@pytest.mark.parametrize("size", [None, 1, 2, 3])
def test_stats_do_not_depend_on_micro_batches(size: int | None) -> None:
    assert reported(micro_batch_size=size) == pytest.approx(expected(), abs=1e-12)


@pytest.mark.parametrize("shares", [(GROUPS[:1], GROUPS[1:]), (GROUPS, ()), ((), GROUPS)])
def test_stats_do_not_depend_on_the_number_of_ranks(shares: tuple[object, object]) -> None:
    barrier, given = threading.Barrier(2, timeout=30), dict[int, Tensor]()

    def summed(rank: int) -> Callable[[Tensor], Tensor]:
        def add(tensor: Tensor) -> Tensor:
            given[rank] = tensor
            barrier.wait()
            total = given[0] + given[1]
            barrier.wait()
            return total

        return add

    def work(rank: int) -> dict[str, float]:
        communicator = Communicator(sum=summed(rank), rank=rank, size=2)
        return reported(shares[rank], micro_batch_size=2, communicator=communicator)  # type: ignore[call-overload]

    with ThreadPoolExecutor(2) as pool:
        found = [future.result(60) for future in [pool.submit(work, rank) for rank in range(2)]]
    assert found == [pytest.approx(expected(), abs=1e-12)] * 2


def reported(groups: object = GROUPS, **options: object) -> dict[str, float]:
    drifting = {id(each): other for each, other in zip(GROUPS, drifted(on_policy(GROUPS, build())), strict=True)}
    made = learner(build(torch.float64), policy_loss=f"{__name__}:reductions", **options)
    found = values(made.update([drifting[id(each)] for each in groups]))  # type: ignore[attr-defined]
    return {key.removeprefix("actor/"): value for key, value in found.items() if "by_" in key or "plain" in key}


def expected() -> dict[str, float]:
    """Return the stats of one pass over all answers."""
    model = build(torch.float64)
    logprobs = torch.cat([
        torch.log_softmax(model(torch.tensor([[*group.prompt.tokens, *answer.tokens]]), None)[0], -1)[
            len(group.prompt.tokens) - 1 : -1
        ].gather(1, torch.from_numpy(answer.tokens)[:, None])[:, 0]
        for group in GROUPS
        for answer in group.trajectories
    ])  # fmt: skip
    assert len(logprobs) == TOKENS
    mean = logprobs.mean().item()
    extremes = {"by_max": logprobs.max().item(), "by_min": logprobs.min().item()}
    return {"plain": mean, "by_mean": mean, "by_sum": logprobs.sum().item(), **extremes}


RESERVED = (
    "loss_spikes", "rollbacks", "skipped_updates", "updates_without_tokens", "actor/loss_spikes", "gap/minmax_diff",
    "critic/mine", "nan/mine", "ledger/groups/sampled", "replay/mine", "kl_coef", "log_ratio_abs", "actor/lr",
    "entropy", "pg_loss", "kl_loss", "grad_norm", "lr", "actor/pg_loss", "actor/entropy", "critic/vf_loss",
    "critic/score/mean", "rollout_corr/kl", "timing_s/gen", "training/global_step", "val/score/mean",
)  # fmt: skip


@pytest.mark.parametrize("key", RESERVED)
def test_names_of_the_learners_own_metrics_are_refused(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.not_always", lambda logprobs: TokenLoss(-logprobs, {key: logprobs.detach()}))
    name = f"{__name__}:not_always"
    named = key if "/" in key else f"actor/{key}"
    message = f"algorithm.policy_loss: '{name}' returned a TokenLoss with stats['{key}'], but the metric '{named}' is"
    with pytest.raises(ConfigError, match=re.escape(message)):
        learner(build(), policy_loss=name).update(GROUPS)


def test_two_keys_of_one_metric_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        f"{__name__}.not_always",
        lambda logprobs: TokenLoss(-logprobs, dict.fromkeys(("mine", "actor/mine"), logprobs.detach())),
    )
    with pytest.raises(ConfigError, match=r"stats\['actor/mine'\], but another key has the metric 'actor/mine'"):
        learner(build(), policy_loss=f"{__name__}:not_always").update(GROUPS)


def test_stats_that_differ_between_micro_batches_are_refused() -> None:
    made = learner(build(), policy_loss=f"{__name__}:not_always", micro_batch_size=1)
    with pytest.raises(ConfigError, match=r"'.*:not_always' reported 'actor/long' for some micro-batches only"):
        made.update(GROUPS)


def halves(logprobs: Tensor, proximal: Tensor, advantages: Tensor, mask: Tensor) -> TokenLoss:
    result = ppo_clip(logprobs, proximal, advantages, mask)
    large = torch.full_like(logprobs.detach(), 60000.0, dtype=torch.float16)
    return TokenLoss(result.loss, {"large": large, "large_sum": TokenSum(large)})


def test_half_precision_stats_are_summed_in_float32() -> None:
    found = values(learner(build(), policy_loss=f"{__name__}:halves").update(on_policy(GROUPS, build())))

    assert found["actor/large"] == 60000.0 - 60000.0 % 32
    assert found["actor/large_sum"] == TOKENS * found["actor/large"]


@pytest.mark.parametrize("key", [1, None, "", "/", "mine/", "/mine"])
def test_a_stat_without_a_proper_name_is_refused(key: object) -> None:
    def unnamed(logprobs: Tensor, proximal: Tensor, advantages: Tensor, mask: Tensor) -> TokenLoss:
        result = ppo_clip(logprobs, proximal, advantages, mask)
        return TokenLoss(result.loss, {**result.stats, key: torch.ones_like(logprobs.detach())})

    globals()["unnamed"] = unnamed
    with pytest.raises(ConfigError, match="expected a name such as 'ratio' or 'ratio/max'"):
        learner(build(), policy_loss=f"{__name__}:unnamed").update(on_policy(GROUPS, build()))


def test_every_metric_of_the_trainer_under_actor_is_reserved() -> None:
    """Those that plugins write are found in their source."""
    root = Path(hooktrainer.__file__).parents[1]
    written = {
        name
        for file in (*root.glob("plugins/**/*.py"), *root.glob("hooktrainer/learner/*.py"))
        for name in re.findall(r'"actor/(\w+)"', file.read_text(encoding="utf-8"))
    }
    of_losses = {"ppo_kl"}  # read by a guard
    assert {f"actor/{name}" for name in written - of_losses} <= RESERVED_METRICS
