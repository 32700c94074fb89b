"""Values computed from their reduced parts."""

from __future__ import annotations

import math

import pytest

from hooktrainer.metrics import Max, Mean, Min, Record, RuleTable, derive


def test_minmax_diff_uses_the_extremes_of_the_step() -> None:
    record = Record(step=1)
    for low, high, diff in [(5, 20, 15), (0, 8, 8)]:
        record.add(
            {
                "global_seqlen/min": Min(low),
                "global_seqlen/max": Max(high),
                "global_seqlen/minmax_diff": Mean(diff),
            }
        )
    assert record.seal(derive)["global_seqlen/minmax_diff"] == 20 - 0


def test_minmax_diff_is_derived_if_max_and_min_exist() -> None:
    assert derive({"global_seqlen/max": 20.0, "global_seqlen/min": 0.0}) == {"global_seqlen/minmax_diff": 20.0}
    assert derive({"critic/seqlen/max": 9.0, "critic/seqlen/min": 2.0, "critic/seqlen/minmax_diff": 1.0}) == {
        "critic/seqlen/minmax_diff": 7.0
    }


def test_reported_minmax_diff_is_kept_if_max_or_min_is_missing() -> None:
    assert derive({"global_seqlen/max": 60.0, "global_seqlen/minmax_diff": 30.0}) == {}


def test_throughput_is_total_tokens_over_total_time() -> None:
    record, rules = Record(step=1), RuleTable()
    for tokens, seconds in [(1000, 1), (3000, 5)]:
        parts = {"perf/total_num_tokens": tokens, "timing_s/step": seconds, "perf/num_devices": 2}
        record.add(rules.to_metrics(parts | {"perf/throughput": tokens / (2 * seconds)}, samples=8))
    row = record.seal(derive)
    assert row["perf/throughput"] == pytest.approx(4000 / (6 * 2))
    assert row["perf/time_per_step"] == 6.0


def test_number_of_devices_defaults_to_1() -> None:
    assert derive({"perf/total_num_tokens": 12.0, "timing_s/step": 3.0})["perf/throughput"] == 4.0


def test_ratio_with_denominator_0_is_omitted() -> None:
    record = Record(step=1)
    parts = {"timing_s/step": 0, "timing_s/gen": 0, "perf/total_num_tokens": 0, "perf/throughput": 7.0}
    record.add(RuleTable().to_metrics(parts | {"timing_s/update_actor": 1.0}, samples=1))
    row = record.seal(derive)
    assert not {"perf/throughput", "perf/idle_ratio", "timing_per_token_ms/update_actor"} & row.keys()


def test_idle_ratio_is_generation_time_over_step_time() -> None:
    assert derive({"timing_s/gen": 1.0, "timing_s/step": 4.0})["perf/idle_ratio"] == 0.25


def test_time_per_token_divides_by_the_tokens_of_the_phase() -> None:
    derived = derive(
        {
            "timing_s/gen": 2.0,
            "timing_s/update_actor": 3.0,
            "timing_s/weight_sync": 9.0,
            "perf/total_num_tokens": 1000.0,
            "perf/total_num_response_tokens": 500.0,
        }
    )
    assert derived == {"timing_per_token_ms/gen": 4.0, "timing_per_token_ms/update_actor": 3.0}


def test_time_per_token_of_a_custom_phase_is_recomputed() -> None:
    values = {"timing_per_token_ms/judge": 9.0, "timing_s/judge": 1.0, "perf/total_num_tokens": 100.0}
    assert derive(values) == {"timing_per_token_ms/judge": 10.0}


def test_reported_ratio_is_kept_if_its_parts_are_missing() -> None:
    assert derive({"perf/throughput": 5.0, "timing_per_token_ms/gen": 1.0, "staleness": {1.0: 3}}) == {}


def test_nan_and_histograms_are_accepted_as_parts() -> None:
    assert math.isnan(derive({"global_seqlen/max": math.nan, "global_seqlen/min": 0.0})["global_seqlen/minmax_diff"])
    assert derive({"timing_s/step": {1.0: 2}}) == {}


def test_learner_goodput_shares_add_up_to_the_step() -> None:
    row = {
        "timing_s/step": 10.0,
        "timing_s/update_actor": 5.0,
        "timing_s/gen": 2.0,
        "timing_s/weight_sync": 1.0,
        "timing_s/testing": 1.0,
    }

    shares = {key: value for key, value in derive(row).items() if key.startswith("perf/goodput/learner/")}

    assert shares == pytest.approx(
        {
            "perf/goodput/learner/training": 0.5,
            "perf/goodput/learner/waiting_for_groups": 0.2,
            "perf/goodput/learner/syncing": 0.1,
            "perf/goodput/learner/validating": 0.1,
            "perf/goodput/learner/other": 0.1,
        }
    )


def test_wasted_token_share_includes_every_drop_reason() -> None:
    row = {
        "ledger/tokens/generated": 200.0,
        "ledger/tokens/dropped/stale": 30.0,
        "ledger/tokens/dropped/capacity": 20.0,
    }

    assert derive(row)["perf/goodput/engine/wasted"] == 0.25
    assert derive({"ledger/tokens/generated": 0.0})["perf/goodput/engine/wasted"] is None


def test_engine_goodput_shares_add_up_to_the_worker_time() -> None:
    row = {"timing_s/generate": 6.0, "timing_s/engine_wait_groups": 3.0, "timing_s/engine_wait_weights": 1.0}

    shares = [
        derive(row)[f"perf/goodput/engine/{name}"]
        for name in ("generating", "waiting_for_groups", "waiting_for_weights")
    ]

    assert shares == pytest.approx([0.6, 0.3, 0.1])
