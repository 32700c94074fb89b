"""The reduction of plain numbers, lists, tensors and NaNs."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
import torch

from hooktrainer.errors import ConfigError, MetricError
from hooktrainer.metrics import Counts, Last, Max, Mean, Min, Record, Reduction, RuleTable, Sum


def row_of(
    iterations: Sequence[Mapping[str, object]], samples: Sequence[int] | None = None, rules: RuleTable | None = None
) -> Mapping[str, object]:
    """Return the row of a step with these iterations."""
    record = Record(step=1)
    for values, count in zip(iterations, samples or [1] * len(iterations), strict=True):
        record.add((rules or RuleTable()).to_metrics(values, count))
    return record.seal()


def reduced(key: str, values: Sequence[object], samples: Sequence[int] | None = None) -> object:
    """Return the value of one key with one value for each iteration."""
    return row_of([{key: value} for value in values], samples).get(key)


@pytest.mark.parametrize(
    ("key", "values", "expected"),
    [
        ("actor/minibatch_loss", [1, 2, 6], 3),
        ("env/administration_s", [2, 4, 9], 5),
        ("reward/assumed_prior", [1, 2, 3], 2),
        ("text/summary_len", [10, 20, 30], 20),
        ("tool/terminal_calls", [1, 2, 6], 3),
        ("actor/climax_score", [1, 2, 6], 3),
        ("reward/terminal", [1, 2, 6], 3),
        ("val/admin_domain/acc", [1, 2, 6], 3),
        ("actor/num_minibatches", [1, 2, 6], 3),
        ("global_seqlen/minmax_diff", [10, 20, 60], 30),
        ("max/acc", [1, 2, 6], 3),
        ("critic/values/max", [1, 2, 6], 6),
        ("critic/values/min", [1, 2, 6], 1),
    ],
)
def test_rule_matches_whole_words_of_the_last_segment_only(key: str, values: list[int], expected: int) -> None:
    assert reduced(key, values) == expected


@pytest.mark.parametrize(
    ("key", "values", "expected"),
    [
        ("timing_s/step", [4, 6, 5], 15),
        ("timing_s/score/max", [2, 5, 3], 5),
        ("timing_s/score/min", [0.5, 0.2, 0.4], 0.2),
        ("timing_s/score/mean", [1, 2, 3], 2),
        ("timing_s/score/p95", [1, 2, 3], 2),
        ("timing_s/score_std", [1, 2, 3], 2),
        ("timing_s/hook/staleness", [1, 2, 3], 6),
    ],
)
def test_prefix_sums_only_additive_metrics(key: str, values: list[float], expected: float) -> None:
    assert reduced(key, values) == expected


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        ("response_length/max_mean", Mean),
        ("response_length/mean_max", Max),
        ("perf/total_num_tokens", Sum),
        ("actor/lr", Last),
        ("critic/lr_min", Min),
        ("rollout/version", Last),
        ("training/global_step", Last),
        ("training/rollout_probs_diff_valid", Last),
        ("training/off_policy/evicted_samples", Sum),
        ("training/filter_groups/evicted_samples", Sum),
        ("loss", Mean),
        ("", Mean),
    ],
)
def test_last_matching_word_of_the_last_segment_determines_the_reduction(key: str, kind: Reduction) -> None:
    assert RuleTable().reduction(key) is kind


VERL = {
    "a/maximum": 5.0,
    "a/minimum": 1.0,
    "Loss/Max": 5.0,
    "actor/LR": 2.0,
    "x/discarded_surplus_samples": 10.0,
    "timing_per_token_ms/gen": 2.5,
    "a/MINIMUM_len": 1.0,
    "len_Maximum": 5.0,
    "a/Average": 2.5,
    "a/max_average": 2.5,
    "Tokens/TOTAL": 10.0,
    "a/sum_of_parts": 10.0,
    "a/WEIGHTED_AVG": 2.5,
    "LR": 2.0,
    "actor/muon_lr": 2.0,
    "critic/Lr": 2.0,
    "Timing_S/gen": 10.0,
    "validation/timing_s/gen": 10.0,
    "val/acc/best@4": 2.5,
    "val/acc/max@4": 5.0,
    "training/filter_groups/Evicted_Samples": 10.0,
    "validation/rollout_failure/evicted_samples": 10.0,
    "Training/Global_Step": 2.0,
    "training/rollout_probs_diff_valid": 2.0,
}
"""Values of rows, for 1, 5, 2 and 2 in four updates."""


@pytest.mark.parametrize("key", VERL)
def test_the_rule_words_of_verl_are_known_in_every_case_and_place(key: str) -> None:
    assert reduced(key, [1.0, 5.0, 2.0, 2.0]) == VERL[key]


@pytest.mark.parametrize(
    ("key", "expected"),
    [("timing_per_token_ms/gen", 1.0), ("x/discarded_surplus_samples", 4.0), ("a/maximum", 1.0), ("actor/LR", 1.0)],
)
def test_the_same_number_in_each_update_is_added_up_only_for_amounts(key: str, expected: float) -> None:
    assert reduced(key, [1.0] * 4) == expected


@pytest.mark.parametrize("key", ["training/off_policy/evicted_samples", "x/Discarded_Surplus_Samples"])
def test_the_mean_staleness_of_a_tally_is_weighted_by_it(key: str) -> None:
    first, second = {key: 1, f"{key}_staleness/mean": 2.0}, {key: 3, f"{key}_staleness/mean": 6.0}
    assert row_of([first, second], [8, 8])[f"{key}_staleness/mean"] == 5.0


def test_state_metrics_take_the_last_value() -> None:
    assert reduced("actor/lr", [1e-3, 5e-4, 2.5e-4]) == 2.5e-4
    assert reduced("training/global_step", [1, 2, 3]) == 3


def test_a_mean_is_weighted_by_the_samples_of_each_iteration() -> None:
    assert reduced("loss", [1.0, 3.0], [1, 3]) == 2.5
    assert reduced("reward/weighted_avg", [0.9, 0.3], [10, 50]) == pytest.approx(0.4, abs=1e-15)


def test_mean_uses_the_weights_of_iterations_with_the_key_only() -> None:
    assert row_of([{"b": 2.0}, {}, {"b": 6.0}], [1, 7, 3])["b"] == 5.0
    assert row_of([{"b": 10}, {}, {"b": 20}], [1, 1, 2])["b"] == pytest.approx(50 / 3)


def test_list_is_averaged_within_its_iteration() -> None:
    assert reduced("loss", [[1, 1, 1], [5]]) == 3.0
    assert reduced("loss", [(1.0, 1.0, 1.0), 5.0], [1, 3]) == 4.0


def test_a_list_is_reduced_by_the_rule_of_its_key() -> None:
    assert reduced("resp/max", [[1, 4, 2], 3]) == 4.0
    assert reduced("timing_s/gen", [[1, 2], [4]]) == 7.0
    assert reduced("actor/lr", [[3, 1], [2, 5]]) == 5.0


def test_empty_list_is_ignored() -> None:
    assert reduced("resp/max", [[4], [], [7]]) == 7.0
    assert row_of([{"resp/max": [], "loss": 1.0}] * 3) == {"loss": 1.0}


def test_weights_of_a_metric_override_the_number_of_samples() -> None:
    metrics = [Mean.of([1.0, 1.0], [10, 20]), Mean.of([5.0], [10])]
    assert reduced("loss", metrics, [1, 100]) == 2.0


def test_nan_values_are_excluded_with_their_weight_and_counted() -> None:
    row = row_of([{"r": value} for value in (2.0, math.nan, 4.0)], [1, 5, 3])
    assert row == {"r": 3.5, "nan/r": 1.0}
    row = row_of([{"r": value} for value in (0.5, math.nan, 0.75, math.nan)])
    assert row == {"r": 0.625, "nan/r": 2.0}


def test_nan_values_in_a_list_are_excluded_and_counted() -> None:
    assert row_of([{"r": [0.5, math.nan, 1.5]}, {"r": 3.0}], [1, 1]) == {"r": 2.0, "nan/r": 1.0}
    assert row_of([{"r/max": [math.nan, 1.5]}]) == {"r/max": 1.5, "nan/r/max": 1.0}


def test_metric_of_only_nan_is_nan() -> None:
    row = row_of([{"r": math.nan, "s": [math.nan, math.nan]}] * 2)
    assert math.isnan(row["r"])
    assert math.isnan(row["s"])
    assert (row["nan/r"], row["nan/s"]) == (2.0, 4.0)


def test_bools_are_0_and_1() -> None:
    assert reduced("done", [True, np.bool_(False), True, torch.tensor(False)]) == 0.5


def test_one_element_tensors_are_accepted_and_not_kept() -> None:
    tensor = torch.tensor([2.0], requires_grad=True) * 1
    alive = weakref.ref(tensor)
    values = {"loss": tensor, "losses": [tensor, np.float32(4.0)]}
    metrics = RuleTable().to_metrics(values, 1)
    del tensor, values
    gc.collect()
    assert alive() is None
    assert {key: metric.value for key, metric in metrics.items()} == {"loss": 2.0, "losses": 3.0}


def test_half_precision_values_are_summed_exactly() -> None:
    ones = [torch.tensor(1.0, dtype=torch.bfloat16)] * 300
    assert reduced("loss", ones) == 1.0
    assert reduced("tokens/sum", ones) == 300.0


@pytest.mark.parametrize(
    "value", [torch.ones(3), np.ones(3), [torch.ones(3)], [[1.0, 2.0, 3.0]], None, "high", {"a": 1}]
)
def test_value_that_is_not_one_number_is_refused_by_name(value: object) -> None:
    with pytest.raises(MetricError, match="'actor/x'"):
        RuleTable().to_metrics({"fine": 1.0, "actor/x": value}, 4)


def test_metric_object_is_unchanged() -> None:
    counts = Counts({1: 2})
    assert RuleTable({"x": "last"}).metric("x", counts, 4) is counts


def test_a_mapping_of_values_to_counts_is_a_histogram() -> None:
    assert row_of([{"x": {0.0: 3, 1.0: 1}}, {"x": {0.0: 2}}]) == {"x": {0.0: 5, 1.0: 1}}
    with pytest.raises(MetricError, match="metric 'x': the counts of a histogram are integers"):
        RuleTable().to_metrics({"x": {1.0: 0.5}}, 1)


def test_the_staleness_of_evicted_groups_is_weighted_by_how_many_there_were() -> None:
    count, mean = "training/off_policy/evicted_samples", "training/off_policy/evicted_samples_staleness/mean"
    row = row_of([{mean: 10.0, count: 1}, {mean: 2.0, count: 3}], [32, 32])
    assert row == {mean: 4.0, count: 4.0}


def test_mean_staleness_of_evicted_groups_is_absent_without_evictions() -> None:
    count, mean = "training/off_policy/evicted_samples", "training/off_policy/evicted_samples_staleness/mean"
    assert row_of([{mean: math.nan, count: 0}, {mean: 2.0, count: Sum(3)}]) == {mean: 2.0, count: 3.0}
    assert row_of([{mean: 0.0, count: 0}]) == {count: 0.0}


def test_mean_without_a_count_has_one_vote_per_iteration() -> None:
    mean = "training/off_policy/evicted_samples_staleness/mean"
    assert row_of([{mean: 1.0}, {mean: 2.0}], [10, 90]) == {mean: 1.5}


class TestUserRules:
    def test_exact_key_overrides_all_other_rules(self) -> None:
        rules = RuleTable({"reward/terminal": "last", "critic/values/max": "mean", "training/global_step": "max"})
        assert rules.reduction("reward/terminal") is Last
        assert rules.reduction("critic/values/max") is Mean
        assert rules.reduction("training/global_step") is Max

    def test_prefix_rule_applies_if_no_word_rule_matches(self) -> None:
        rules = RuleTable({"my/counters/": "sum"})
        assert rules.reduction("my/counters/calls") is Sum
        assert rules.reduction("my/counters/calls_max") is Max
        assert rules.reduction("my/countersign") is Mean

    def test_longest_prefix_wins_and_user_rules_override_built_in_ones(self) -> None:
        rules = RuleTable({"a/": "sum", "a/b/": "min", "timing_s/": "last"})
        assert rules.reduction("a/x") is Sum
        assert rules.reduction("a/b/x") is Min
        assert rules.reduction("timing_s/step") is Last

    def test_unknown_reductions_are_refused_together_with_suggestions(self) -> None:
        with pytest.raises(ConfigError) as caught:
            RuleTable({"a": "lst", "b/": "sum", "c": 3})
        assert len(caught.value.faults) == 2
        assert (
            "rule 'a': unknown reduction 'lst'; expected one of mean, sum, max, min, last. Did you mean 'last'?"
            in str(caught.value)
        )

    def test_rules_that_are_not_a_mapping_are_refused(self) -> None:
        with pytest.raises(ConfigError, match="must map keys to reductions"):
            RuleTable(["last"])
