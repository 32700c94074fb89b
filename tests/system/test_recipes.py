"""The recipes: each configuration is one that `plan` accepts, and the metrics that the text names exist."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import yaml

from helpers.huggingface_models import save_model
from helpers.readmes import ROOT
from hooktrainer.cli import main
from hooktrainer.run.glossary import described

PAGE = ROOT / "docs" / "recipes.md"
pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="the page is not among the tests")
TEXT = PAGE.read_text() if PAGE.exists() else ""
RECIPES = {text.split("\n")[0].removeprefix("# "): text for text in re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)}


@pytest.fixture(autouse=True)
def beside_the_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a folder with the files that recipes name."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", RECIPES)
def test_plan_accepts_a_recipe(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    if "tiny_llama" in RECIPES[name]:
        save_model(Path("runs", "tiny_llama"))
    Path("run.yaml").write_text(RECIPES[name])

    assert main(["plan", "run.yaml"]) == 0, capsys.readouterr().err


@pytest.mark.parametrize("name", ["grpo.yaml", "ppo.yaml", pytest.param("off_policy.yaml", marks=pytest.mark.slow)])
def test_a_recipe_trains(name: str) -> None:
    recipe = yaml.safe_load(RECIPES[name])
    recipe["model"] |= {"layers": 1, "width": 16, "heads": 2}
    recipe["trainer"] |= {"total_steps": 2}
    Path("run.yaml").write_text(yaml.safe_dump(recipe))

    assert main(["fit", "run.yaml"]) == 0
    assert len(Path("runs", "run", "metrics.jsonl").read_text().splitlines()) == 2


def test_there_is_a_recipe_for_each_kind_of_run() -> None:
    assert list(RECIPES) == ["grpo.yaml", "ppo.yaml", "off_policy.yaml", "server.yaml", "ranks.yaml"]


def test_metrics_that_recipes_name_exist() -> None:
    named = re.findall(r"`([a-z_]+/[\w/]+)`", TEXT)
    assert len(named) >= 7
    assert not [name for name in named if described(name) is None]
