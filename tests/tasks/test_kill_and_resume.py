"""A run on a shuffled file that is killed in the middle of an epoch trains on every prompt once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

ROWS = 40
PATIENCE_S = 120
SCRIPT = """
import sys
from helpers.kills import RecordingLearner
from hooktrainer.cli import main
from hooktrainer.learner import policy_gradient
policy_gradient.PolicyGradientLearner = RecordingLearner
sys.exit(main(["fit", "run.yaml"]))
"""
DATASET = """{use: dataset, path: train.parquet, rewards: [{use: "r.py:exact"}]}"""
MIXTURE = """
  use: mixture
  tasks:
    - {use: dataset, path: train.parquet, ratio: 3, name: first, rewards: [{use: "r.py:exact"}]}
    - {use: dataset, path: other.jsonl, name: second, rewards: [{use: "r.py:exact"}]}
"""
CONFIG = """
task: TASK
model: {use: decoder, layers: 1, width: 16, heads: 2}
rollout: {use: ENGINE, n: 2, max_response_length: 4}
trainer: {total_epochs: 2, train_batch_size: 4, ppo_mini_batch_size: 2, parameter_sync_step: 2}
run: {resume: auto}
plugins:
  - metric_aggregation
  - weight_sync
  - {use: log_after_collect, sinks: [jsonl]}
  - {use: checkpoint, every: 2}
"""


def started(folder: Path) -> subprocess.Popen[bytes]:
    path = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    environment = {**os.environ, "PYTHONPATH": path}
    with (folder / "log").open("ab") as log:
        command = [sys.executable, "-c", SCRIPT]
        return subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log, start_new_session=True)


def kill_after(folder: Path, step: int) -> None:
    """Start the run, and kill it when the checkpoint of a step is complete."""
    run, saved = started(folder), folder / "runs" / "run" / "checkpoints" / f"step_{step:08d}"
    deadline = time.monotonic() + PATIENCE_S
    while not saved.exists():
        assert run.poll() is None, (folder / "log").read_text()
        assert time.monotonic() < deadline
        time.sleep(0.002)
    os.killpg(run.pid, signal.SIGKILL)
    run.wait()


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["inline", "thread"])
@pytest.mark.parametrize("task", [DATASET, MIXTURE], ids=["dataset", "mixture"])
def test_no_prompt_is_lost_or_trained_twice_after_sigkill_in_an_epoch(task: str, engine: str, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(CONFIG.replace("TASK", task).replace("ENGINE", engine))
    (tmp_path / "r.py").write_text("def exact(answer, truth): return float(answer == truth)")
    pq.write_table(
        pa.Table.from_pylist([{"prompt": f"{n}>", "truth": str(n)} for n in range(ROWS)]), tmp_path / "train.parquet"
    )
    others = [{"prompt": f"{n}<", "truth": str(n)} for n in range(ROWS // 3)]
    (tmp_path / "other.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in others))
    is_mixture = task is MIXTURE
    size = 4 * (ROWS // 3) if is_mixture else ROWS
    steps = 2 * size // 4

    for step in (4, 12, 16):
        kill_after(tmp_path, step)
    assert started(tmp_path).wait(PATIENCE_S) == 0, (tmp_path / "log").read_text()

    last = tmp_path / "runs" / "run" / "checkpoints" / f"step_{steps:08d}"
    trained = json.loads((last / "state.json").read_text())["parts"]["learner"]["state"]["trained"]
    assert len(trained) == 2 * size
    for epoch in (trained[:size], trained[size:]):
        assert len(set(epoch)) == size
        assert sum(prompt.endswith("<") for prompt in epoch) == (ROWS // 3 if is_mixture else 0)
    assert trained[:size] != trained[size:]
