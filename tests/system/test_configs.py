"""All shipped configurations and examples compose, and their plans import no torch."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import make_tiny_llama
import pytest

from helpers.huggingface_models import save_model
from helpers.serving import ModelServer, serving
from hooktrainer import build_trainer, load_config
from hooktrainer.models.huggingface_options import HuggingFaceOptions
from hooktrainer.run.composition import composition_of

ROOT = Path(__file__).parents[2]
SMALL = ("quickstart", "sync", "process", "ray", "huggingface", "server")
CONFIGS = sorted([*ROOT.glob("configs/*.yaml"), *ROOT.glob("examples/*.yaml")])
OVERLAYS = sorted(ROOT.glob("configs/tasks/*.yaml"))
FAMILIES = sorted(set(ROOT.glob("configs/*.yaml")) - {ROOT / "configs" / f"{name}.yaml" for name in SMALL})
FAST = ("quickstart", "ppo")
SIZES = {"vocab_size": 96, "max_length": 64, "seed": 0}
TINY = ["trainer.total_steps=2", "plugins.validation.size=8"]


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=() if path.stem in FAST else pytest.mark.slow) for path in CONFIGS],
    ids=lambda path: path.name,
)
def test_a_shipped_configuration_composes_and_trains(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.chdir(tmp_path)
    overrides = []
    if path.name in {"huggingface.yaml", "server.yaml"}:
        make_tiny_llama.main(["runs/tiny_llama", "--steps", "1"])
    has_validation = any(entry.name == "validation" for entry in load_config(path).plugins)
    if path.name == "server.yaml":
        overrides = ["rollout.n=4", f"rollout.urls=[{request.getfixturevalue('llama_server').url}]"]
    if path.name == "ddp.yaml":
        overrides = ["learner.ranks=1"]  # the command starts the other ranks
    config = load_config(path, overrides=[*(TINY if has_validation else TINY[:1]), *overrides])

    assert build_trainer(config).fit().step == 2


@pytest.fixture
def llama_server() -> Iterator[ModelServer]:
    """A server that loads the models of Hugging Face."""
    with serving(load=lambda folder: HuggingFaceOptions(path=str(folder)).build(**SIZES)) as servers:
        yield servers[0]


@pytest.mark.parametrize("overlay", OVERLAYS, ids=lambda path: path.name)
@pytest.mark.parametrize("path", FAMILIES, ids=lambda path: path.name)
def test_task_config_combines_with_every_model_config(path: Path, overlay: Path) -> None:
    config, task = load_config(path), load_config(path, overlay)

    assert task.task != config.task
    assert (task.algorithm, task.critic, task.optim) == (config.algorithm, config.critic, config.optim)


def test_plans_of_shipped_configurations_import_no_torch_unless_they_name_functions_in_files(tmp_path: Path) -> None:
    save_model(tmp_path / "runs" / "tiny_llama")
    script = """
import sys
from hooktrainer.cli import main
for path in sys.argv[1:]:
    assert main(["plan", path]) == 0, path
    assert "torch" not in sys.modules, path
"""
    without_functions = [path for path in CONFIGS if path.name != "04_loss.yaml"]
    command = [sys.executable, "-c", script, *map(str, without_functions)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)

    assert done.stdout.count("weight_sync.sync") >= len(without_functions)


def test_quickstart_overlaps_rollout_and_training_and_the_synchronous_run_does_not() -> None:
    quickstart, sync = (load_config(ROOT / "configs" / f"{name}.yaml") for name in ("quickstart", "sync"))

    assert (quickstart.rollout.use, sync.rollout.use) == ("thread", "inline")
    assert quickstart.trainer.num_warmup_batches > sync.trainer.num_warmup_batches == 0
    assert quickstart.trainer.parameter_sync_step == sync.trainer.parameter_sync_step == 4
    for config in (quickstart, sync):
        composition_of(config)


@pytest.mark.parametrize(
    ("name", "metrics"),
    [
        ("05_reward", ["reward/is_right/mean"]),
        ("06_reward_verl", ["reward/compute_score/mean", "reward/compute_score/accuracy/mean"]),
        ("07_reward_trl", ["reward/accuracy_reward/mean", "reward/length_reward/mean"]),
    ],
)
def test_examples_of_reward_functions_report_their_values(
    name: str, metrics: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    build_trainer(load_config(ROOT / "examples" / f"{name}.yaml", overrides=TINY[:1])).fit()

    rows = [json.loads(line) for line in Path("runs", name, "metrics.jsonl").read_text().splitlines()]
    assert all(metric in row for row in rows for metric in metrics)


def test_the_example_in_python_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["01_train.py", *TINY])
    runpy.run_path(str(ROOT / "examples" / "01_train.py"), run_name="__main__")

    assert "step 2: score" in capsys.readouterr().out


def test_the_test_of_the_example_plugin_passes(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        str(ROOT / "examples" / "03_test_plugin.py"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env={**os.environ}, check=False)

    assert "6 passed" in done.stdout, done.stdout
