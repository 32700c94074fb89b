"""Training and generation on a device with its own memory equal those on the CPU, and wait for it as rarely."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from helpers.huggingface_models import save_model
from helpers.simulated_device import simulated_device
from hooktrainer.errors import ConfigError
from hooktrainer.run.build import build_trainer
from hooktrainer.run.loading import load_config

CONFIG = """
seed: 3
task: {use: sort_digits, digits: 3}
model: {use: decoder, layers: 1, width: 16, heads: 2}
rollout: {use: inline, n: 4, max_response_length: 5}
algorithm: {adv_estimator: grpo, kl_coeff: 0.01, entropy_coeff: 0.01, ppo_epochs: 1}
optim: {lr: 0.001, micro_batch_size: 4}
trainer: {total_steps: 2, train_batch_size: 4, ppo_mini_batch_size: 2, parameter_sync_step: 2, intra_op_threads: 1}
plugins:
  - metric_aggregation
  - weight_sync
  - {use: validation, every: 1, size: 4}
  - {use: log_after_collect, sinks: [jsonl]}
  - {use: checkpoint, every: 1}
"""
UPDATES = 4
Row = dict[str, object]


def rows(folder: Path, name: str, *overrides: str) -> list[Row]:
    """Return the rows of a run, without those of time."""
    path = folder / "run.yaml"
    path.write_text(CONFIG)
    build_trainer(load_config(path, overrides=[f"run.dir={folder}", f"run.name={name}", *overrides])).fit()
    lines = (folder / name / "metrics.jsonl").read_text().splitlines()
    return [
        {key: value for key, value in json.loads(line).items() if "/" in key and "tim" not in key} for line in lines
    ]


def assert_equal(found: list[Row], expected: list[Row]) -> None:
    """Compare rows up to the order in which kernels of two devices sum."""
    skipped = ("perf/", "weight_sync/canary_error")
    for one, other in zip(found, expected, strict=True):
        assert one.keys() == other.keys()
        for key in one:
            if not key.startswith(skipped):
                assert one[key] == pytest.approx(other[key], rel=1e-4, abs=1e-6), key


@pytest.mark.parametrize(
    "placed",
    [
        pytest.param(["rollout.device=cpu"], marks=pytest.mark.slow),
        [],
        pytest.param(["rollout.batching=group"], marks=pytest.mark.slow),
    ],
)
def test_a_run_on_a_device_has_the_rows_of_one_on_the_cpu(tmp_path: Path, placed: list[str]) -> None:
    expected = rows(tmp_path, "cpu")
    with simulated_device() as device:
        found = rows(tmp_path, "device", "model.device=simulated", *placed)
    assert_equal(found, expected)
    assert device.reads


@pytest.mark.slow
def test_a_model_of_transformers_trains_on_a_device(tmp_path: Path) -> None:
    save_model(tmp_path / "llama")
    model = ["model=huggingface", f"model.path={tmp_path / 'llama'}", "rollout.max_prompt_length=16"]
    expected = rows(tmp_path, "cpu", *model)
    with simulated_device():
        found = rows(tmp_path, "device", *model, "model.device=simulated")
    assert_equal(found, expected)


@pytest.mark.slow
def test_an_update_waits_for_its_device_once(tmp_path: Path) -> None:
    with simulated_device() as device:
        rows(tmp_path, "device", "model.device=simulated")
    learning = [place for place in device.reads if "_run_iteration" in place and "rollout/" not in place]
    assert len(learning) == UPDATES
    assert all("metrics/transfer.py" in place for place in learning)


@pytest.mark.slow
def test_a_run_resumes_on_another_device(tmp_path: Path) -> None:
    expected = rows(tmp_path, "cpu", "trainer.total_steps=3")
    rows(tmp_path, "moved", "trainer.total_steps=2")
    with simulated_device():
        found = rows(tmp_path, "moved", "trainer.total_steps=3", "run.resume=auto", "model.device=simulated")
    assert_equal(found, expected)


@pytest.mark.parametrize("name", ["cuda:7", "nowhere"])
@pytest.mark.parametrize("section", ["model", "rollout"])
def test_a_device_that_cannot_be_used_is_refused(tmp_path: Path, section: str, name: str) -> None:
    with pytest.raises(ConfigError) as raised:
        rows(tmp_path, "run", f"{section}.device={name}")
    (fault,) = raised.value.faults
    assert fault.address == f"{section}.device"
    assert f"the device '{name}' cannot be used" in fault.message


def test_a_name_that_is_no_device_is_a_fault_of_the_configuration(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="model.device"):
        rows(tmp_path, "run", "model.device='GPU 1'")


@pytest.mark.slow
def test_worker_processes_sample_on_the_cpu(tmp_path: Path) -> None:
    with simulated_device() as device:
        found = rows(tmp_path, "device", "model.device=simulated", "rollout={use: process, n: 4, workers: 1}")
    assert len(found) == 2
    assert not any("decode_batch" in place for place in device.reads)
