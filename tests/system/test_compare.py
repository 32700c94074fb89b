"""The study script in `examples/`: it trains every seed of every variant, and prints the results."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
STUDIES = sorted((ROOT / "examples" / "studies").glob("*.yaml"))


@pytest.fixture(scope="module")
def compare() -> ModuleType:
    spec = importlib.util.spec_from_file_location("compare", ROOT / "examples" / "compare.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["compare"] = module
    spec.loader.exec_module(module)
    return module


def kept(runs: Path, folder: str, scores: list[float]) -> None:
    """Write a completed run."""
    directory = runs / folder
    directory.mkdir(parents=True)
    rows = [
        {"step": step, "val/score/mean": score, "val/exact_match/mean": score / 2}
        for step, score in enumerate(scores, 1)
    ]
    (directory / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (directory / "cpu_seconds").write_text("1.4\n")


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_configurations_of_every_study_load(compare: ModuleType, path: Path) -> None:
    from hooktrainer import load_config

    for variant in compare.read_study(path):
        load_config(*variant.configs, overrides=variant.overrides)


def test_table_has_each_seed_the_mean_and_the_spread(
    compare: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = tmp_path / "study.yaml"
    study.write_text("configs: [base.yaml]\nruns: {one way: {}, other: {overrides: [a=1]}}\n")
    (tmp_path / "base.yaml").write_text("seed: 0\n")
    variants = {variant.name.replace(" ", "_"): variant for variant in compare.read_study(study)}
    for folder, scores in {
        "one_way-0": [0.5, 0.75],
        "one_way-1": [0.25, 1.0],
        "other-0": [0.0, 0.5],
        "other-1": [0.1, 0.5],
    }.items():
        kept(tmp_path / "runs", folder, scores)
        name, _, seed = folder.rpartition("-")
        made_by = compare.made_by(variants[name], int(seed), tmp_path / "runs")
        (tmp_path / "runs" / folder / "made_by.json").write_text(made_by)

    figure = tmp_path / "figure.svg"
    compare.main(
        [str(study), "--seeds", "0", "1", "--runs", str(tmp_path / "runs"), "--jobs", "2", "--figure", str(figure)]
    )

    printed = capsys.readouterr().out
    assert "| run | seed 0 | seed 1 | mean ± std | exact | CPU s |" in printed
    assert "| one way | 0.750 | 1.000 | 0.875 ± 0.177 | 0.438 | 1 |" in printed
    assert "| other | 0.500 | 0.500 | 0.500 ± 0.000 | 0.250 | 1 |" in printed
    assert "<svg" in figure.read_text()


@pytest.mark.slow
def test_variant_is_trained_once_and_its_failure_shown(
    compare: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = tmp_path / "study.yaml"
    tiny = ["task.digits=2", "rollout.n=2", "model.width=16", "model.layers=1", "trainer.total_steps=2"]
    tiny += ["trainer.train_batch_size=4", "trainer.ppo_mini_batch_size=1", "plugins.validation.size=4"]
    base = ROOT / "configs" / "sync.yaml"
    study.write_text(json.dumps({"configs": [str(base)], "overrides": tiny, "runs": {"tiny": {}}}))

    for _ in range(2):
        compare.main([str(study), "--seeds", "3", "--runs", str(tmp_path / "runs")])

    first, second = (part for part in capsys.readouterr().out.split("tiny, seed 3:")[1:])
    assert first == second
    assert json.loads((tmp_path / "runs" / "tiny-3" / "metrics.jsonl").read_text().splitlines()[-1])["step"] == 2

    with pytest.raises(SystemExit, match=r"(?s)tiny, seed 4: exit 2.*optim\.speed"):
        compare.main([str(study), "optim.speed=1", "--seeds", "4", "--runs", str(tmp_path / "runs")])


def test_a_run_of_another_command_or_configuration_is_trained_again(
    compare: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, base, runs = tmp_path / "study.yaml", tmp_path / "base.yaml", tmp_path / "runs"
    study.write_text("configs: [base.yaml]\nruns: {one: {}}\n")
    base.write_text("seed: 0\n")
    begun = []

    def trained(command: list[str]) -> tuple[int, str, float]:
        begun.append(command[-3])
        if not (runs / "one-3").exists():
            kept(runs, "one-3", [0.5])
        return 0, "", 1.0

    monkeypatch.setattr(compare, "finished", trained)
    for arguments, text, expected in (([], 0, 1), ([], 0, 1), (["a=1"], 0, 2), (["a=1"], 1, 3), (["a=1"], 1, 3)):
        base.write_text(f"seed: {text}\n")
        compare.main([str(study), *arguments, "--seeds", "3", "--runs", str(runs)])
        assert len(begun) == expected


def test_no_run_starts_after_a_failure(compare: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = tmp_path / "study.yaml"
    study.write_text("runs: {one: {}, other: {}}\n")
    begun: list[object] = []

    def failed(command: list[str]) -> tuple[int, str, float]:
        begun.append(command)
        return 2, "no such key", 0.0

    monkeypatch.setattr(compare, "finished", failed)
    with pytest.raises(SystemExit, match="one, seed 0: exit 2\nno such key"):
        compare.main([str(study), "--seeds", "0", "1", "--runs", str(tmp_path / "runs")])
    assert len(begun) == 1
