"""An asynchronous run with staleness 1 equals the synchronous run: the same weights bit for bit, and the same rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from hooktrainer import build_trainer, load_config

RUN = """
task: {use: sort_digits, digits: 3}
model: {use: decoder, layers: 1, width: 16, heads: 2}
rollout: {use: inline, n: 4, max_response_length: 4, batching: group}
optim: {lr: 1e-3}
trainer: {total_steps: 4, train_batch_size: 8, ppo_mini_batch_size: 4, parameter_sync_step: 2, intra_op_threads: 1}
plugins:
  - metric_aggregation
  - weight_sync
  - {use: staleness, max_off_policy_threshold: 1, max_off_policy_strategy: STRATEGY}
  - {use: validation, every: 2, size: 8}
  - {use: log_after_collect, sinks: [jsonl]}
"""
TIMES = ("timing_s/", "timing_per_token_ms/", "perf/")
ENGINES = {
    "inline": [],
    "one thread": ["rollout.use=thread"],
    "three threads": ["rollout.use=thread", "rollout.workers=3"],
}


def run(strategy: str, engine: str) -> tuple[list[dict[str, float]], dict[str, torch.Tensor]]:
    in_order = ["plugins.staleness.in_order=true"] if strategy == "pace" else []
    Path("run.yaml").write_text(RUN.replace("STRATEGY", strategy))
    config = load_config("run.yaml", overrides=[*ENGINES[engine], *in_order, f"run.name={engine.replace(' ', '_')}"])
    trainer = build_trainer(config)
    trainer.fit()
    lines = (config.run.dir / config.run.name / "metrics.jsonl").read_text().splitlines()
    rows = [{key: value for key, value in json.loads(line).items() if not key.startswith(TIMES)} for line in lines]
    return rows, {name: tensor.clone() for name, tensor in trainer.ports.learner.weights().items()}


@pytest.mark.parametrize("strategy", ["wait", "pace"])
def test_threaded_run_gives_the_results_of_the_inline_run(
    strategy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    expected_rows, expected_weights = run(strategy, "inline")

    for engine in ("one thread", "three threads"):
        rows, weights = run(strategy, engine)
        assert rows == expected_rows, engine
        assert all(torch.equal(weights[name], tensor) for name, tensor in expected_weights.items()), engine

    assert [row["training/off_policy/staleness/max"] for row in expected_rows] == [1.0] * 4
    assert [row["ledger/imbalance"] for row in expected_rows] == [0.0] * 4
