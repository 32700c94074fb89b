"""Samples of whole runs: what an answer of several turns looks like, and which lines a resumed run has."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from hooktrainer.cli import main

RUN = """
task: {use: calculator, digits: 1}
model: {use: decoder, layers: 1, width: 16, heads: 2}
rollout: {use: inline, n: 4, max_response_length: 12, max_turns: 3}
optim: {lr: 1e-3}
trainer: {total_steps: 4, train_batch_size: 4, ppo_mini_batch_size: 2, parameter_sync_step: 2}
plugins:
  - metric_aggregation
  - weight_sync
  - {use: validation, every: 2, size: 4}
  - {use: log_after_collect, sinks: [jsonl]}
  - {use: samples, count: 8}
  - {use: checkpoint, every: 1, keep_last: -1}
"""


@pytest.fixture(autouse=True)
def in_temporary_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text(RUN)


def samples(run: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path("runs", run, "samples.jsonl").read_text().splitlines()]


def test_a_run_that_was_cut_off_and_resumed_has_the_samples_of_a_whole_run() -> None:
    assert main(["fit", "run.yaml", "run.name=whole"]) == 0
    assert main(["fit", "run.yaml", "run.name=cut"]) == 0
    for step in (3, 4):  # as if the run had been killed before it saved them
        shutil.rmtree(Path("runs", "cut", "checkpoints", f"step_{step:08d}"))
    path = Path("runs", "cut", "samples.jsonl")
    path.write_bytes(path.read_bytes()[:-20])
    assert main(["fit", "run.yaml", "run.name=cut", "run.resume=auto"]) == 0

    whole = samples("whole")
    assert samples("cut") == whole
    assert [(step, kind) for step, kind in dict.fromkeys((line["step"], line["kind"]) for line in whole)] == [
        (1, "trained"),
        (2, "trained"),
        (2, "validated"),
        (3, "trained"),
        (4, "trained"),
        (4, "validated"),
    ]
    assert {tuple(line["versions"]) for line in whole if line["kind"] == "trained" and line["step"] == 3} == {(2, 2)}
    assert {tuple(line["versions"]) for line in whole if line["kind"] == "validated"} == {(2, 2), (4, 4)}
    assert all({"called", "right"} <= line["metrics"].keys() for line in whole)
