"""The command `compare`: it trains every seed of every variant, or reads existing runs, and prints their scores."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from helpers.run_directories import row, written
from hooktrainer.cli import main
from hooktrainer.run.report import training
from hooktrainer.run.report.studies import check, read_variants

ROOT = Path(__file__).parents[3]
STUDIES = sorted((ROOT / "examples" / "studies").glob("*.yaml"))
SYNC = ROOT / "configs" / "sync.yaml"


def judged(scores: Sequence[float]) -> list[dict[str, Any]]:
    """Return the rows of a run with these validations."""
    exact = "val/exact_match/mean"
    return [row(k, 0.0, **{"val/score/mean": score, exact: score / 2}) for k, score in enumerate(scores, 1)]


class Trainings:
    """Stands for the processes of `fit`: writes their run directories, and keeps their commands."""

    def __init__(self, *scores: Sequence[float]) -> None:
        self.begun: list[list[str]] = []
        self.scores = list(scores) or [[0.5]]

    def __call__(self, command: Sequence[str]) -> tuple[int, str, float]:
        assert command[:4] == [sys.executable, "-m", "hooktrainer", "fit"]
        settings = dict(argument.split("=", 1) for argument in command[4:] if "=" in argument)
        directory = Path(settings["run.dir"], settings["run.name"])
        if not directory.exists():
            written(directory, judged(self.scores[len(self.begun) % len(self.scores)]), seed=int(settings["seed"]))
        self.begun.append(list(command[4:]))
        return 0, "", 1.4


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def trainings(monkeypatch: pytest.MonkeyPatch) -> Trainings:
    found = Trainings()
    monkeypatch.setattr(training, "finished", found)
    return found


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_configurations_of_every_study_load(path: Path) -> None:
    check(read_variants([path]), [0])


def test_table_has_each_seed_the_mean_and_the_spread(
    trainings: Trainings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trainings.scores = [[0.5, 0.75], [0.25, 1.0], [0.0, 0.5], [0.1, 0.5]]
    study = {"configs": [str(SYNC)], "runs": {"one way": {}, "other": {"overrides": ["optim.lr=0.1"]}}}
    Path("study.yaml").write_text(json.dumps(study))

    assert main(["compare", "study.yaml", "--seeds", "0", "1", "--figure", "figure.svg"]) == 0

    printed = capsys.readouterr()
    assert printed.out.splitlines() == [
        "| run | seed 0 | seed 1 | mean ± std | exact | s | CPU s |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        "| one way | 0.750 | 1.000 | 0.875 ± 0.177 | 0.438 | 12 | 1 |",
        "| other | 0.500 | 0.500 | 0.500 ± 0.000 | 0.250 | 12 | 1 |",
    ]
    assert "one way, seed 1: 1.000 after 12.5 s" in printed.err
    assert "report: hooktrainer report runs/compare/study/one_way-0" in printed.err
    assert "<svg" in Path("figure.svg").read_text()
    place = f"run.dir={tmp_path}/runs/compare/study"
    assert trainings.begun[2] == [str(SYNC), "optim.lr=0.1", "seed=0", place, "run.name=other-0"]


def test_plain_configurations_are_variants(trainings: Trainings, capsys: pytest.CaptureFixture[str]) -> None:
    quick = ROOT / "configs" / "quickstart.yaml"
    assert main(["compare", str(quick), str(SYNC), "optim.lr=0.1", "--seeds", "7", "--runs", "here"]) == 0
    assert [command[0] for command in trainings.begun] == [str(quick), str(SYNC)]
    assert all("optim.lr=0.1" in command for command in trainings.begun)
    assert [line.split(" | ")[0] for line in capsys.readouterr().out.splitlines()[2:]] == ["| quickstart", "| sync"]
    assert Path("here/sync-7/compare.json").exists()


def test_existing_runs_are_compared_by_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    written(Path("a-0"), judged([0.5]), seed=0)
    written(Path("a-1"), judged([1.0]), seed=1)
    written(Path("b"), judged([0.25]), seed=1, lr=1.0)

    assert main(["compare", "a-0", "b", "a-1"]) == 0

    assert capsys.readouterr().out.splitlines()[2:] == [
        "| a | 0.500 | 1.000 | 0.750 ± 0.354 | 0.375 | 12 | - |",
        "| b | - | 0.250 | 0.250 | 0.125 | 12 | - |",
    ]


def test_another_metric_is_chosen_and_missing_ones_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    written(Path("a"), [row(1, 0.125)])
    assert main(["compare", "a"]) == 0
    assert "| a | 0.125 |" in capsys.readouterr().out
    assert main(["compare", "a", "--metric", "timing_s/gen"]) == 0
    assert "| a | 0.200 |" in capsys.readouterr().out
    assert main(["compare", "a", "--metric", "timing_s/gem"]) == 2
    assert "no row of a has timing_s/gem. Did you mean 'timing_s/gen'?" in capsys.readouterr().err
    written(Path("empty"), [])
    assert main(["compare", "a", "empty"]) == 2
    assert "no row of empty has val/score/mean or critic/score/mean" in capsys.readouterr().err


def test_a_run_of_another_command_or_configuration_is_trained_again(trainings: Trainings) -> None:
    Path("base.yaml").write_text(SYNC.read_text())
    Path("study.yaml").write_text("configs: [base.yaml]\nruns: {one: {}}\n")
    changes: list[tuple[list[str], str, int]] = [
        ([], "", 1),
        ([], "", 1),
        (["optim.lr=0.1"], "", 2),
        (["optim.lr=0.1"], "# changed\n", 3),
        (["optim.lr=0.1"], "", 3),
    ]
    for arguments, text, expected in changes:
        Path("base.yaml").write_text(Path("base.yaml").read_text() + text)
        assert main(["compare", "study.yaml", *arguments, "--seeds", "3"]) == 0
        assert len(trainings.begun) == expected


def test_no_run_starts_after_a_failure(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    begun: list[object] = []

    def failed(command: Sequence[str]) -> tuple[int, str, float]:
        begun.append(command)
        return 1, "the disk is full\n", 0.0

    monkeypatch.setattr(training, "finished", failed)
    assert main(["compare", str(SYNC), "--seeds", "0", "1"]) == 1
    assert "sync, seed 0: exit 1\nthe disk is full" in capsys.readouterr().err
    assert len(begun) == 1


@pytest.mark.parametrize(
    ("study", "arguments", "message"),
    [
        ("runs: {one: {config: [a.yaml]}}", [], "runs.one.config: unknown key 'config' of the study study.yaml"),
        ("runs: {one: {config: [a.yaml]}}", [], "Did you mean 'configs'?"),
        ("run: [1]\nruns: {}", [], "run: unknown key 'run' of the study study.yaml"),
        ("runs: {}", [], "runs: expected a mapping of names, found {}"),
        ("runs: {one: 3}", [], "runs.one: expected a mapping, found 3"),
        ("runs: {one: {}}", [], "runs.one: there is no configuration in study.yaml; list files under `configs`"),
        (
            "runs: {one: {configs: a.yaml}}",
            [],
            "runs.one.configs: expected a list of texts in study.yaml, found 'a.yaml'",
        ),
        ("runs: {one: {configs: [nope.yaml]}}", [], "there is no such file"),
        ("runs: [", [], "study.yaml cannot be read"),
        (f"configs: [{SYNC}]\nruns: {{a b: {{}}, a_b: {{}}}}", [], "would share their run directories"),
        (f"configs: [{SYNC}]\nruns: {{one: {{}}}}", ["optim.speed=1"], "unknown key 'speed'"),
        (f"configs: [{SYNC}]\nruns: {{one: {{}}}}", ["optim.speed=1"], "(in the run 'one')"),
    ],
)
def test_faults_of_a_study_are_found_before_anything_is_trained(
    study: str, arguments: list[str], message: str, trainings: Trainings, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("study.yaml").write_text(study)
    assert main(["compare", "study.yaml", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not trainings.begun


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["studi.yaml"], "there is no file or run directory studi.yaml. Did you mean 'study.yaml'?"),
        (["optim.lr=1"], "there is nothing to compare"),
        (["run", "optim.lr=1"], "optim.lr=1 has no effect: runs that exist are not trained again"),
        (["."], "has neither run.json nor metrics.jsonl"),
        (["run", "--figure", "nowhere/figure.svg"], "--figure nowhere/figure.svg cannot be written"),
        (["run", "--figure", "figure.doc"], "--figure figure.doc cannot be written"),
    ],
)
def test_mistakes_are_named(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("study.yaml").write_text("runs: {}")
    written(Path("run"), judged([0.5]))
    assert main(["compare", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_variant_is_trained_once_and_its_failure_shown(capsys: pytest.CaptureFixture[str]) -> None:
    tiny = ["task.digits=2", "rollout.n=2", "model.width=16", "model.layers=1", "trainer.total_steps=2"]
    tiny += ["trainer.train_batch_size=4", "trainer.ppo_mini_batch_size=1", "plugins.validation.size=4"]
    Path("study.yaml").write_text(json.dumps({"configs": [str(SYNC)], "overrides": tiny, "runs": {"tiny": {}}}))

    for _ in range(2):
        assert main(["compare", "study.yaml", "--seeds", "3"]) == 0
    first, second = (part for part in capsys.readouterr().out.split("| run |")[1:])
    assert first == second
    rows = Path("runs/compare/study/tiny-3/metrics.jsonl").read_text().splitlines()
    assert json.loads(rows[-1])["step"] == 2

    Path("bad.py").write_text(
        "import attrs\nfrom hooktrainer.tasks.sort_digits import SortDigits\n\n\n@attrs.define(kw_only=True)\n"
        "class Bad(SortDigits):\n    def score(self, *found):\n        raise ValueError('cannot score')\n"
    )
    assert main(["compare", "study.yaml", "task.use=bad.py:Bad", "--seeds", "4"]) == 1
    said = capsys.readouterr().err
    assert "tiny, seed 4: exit 1" in said
    assert "cannot score" in said
