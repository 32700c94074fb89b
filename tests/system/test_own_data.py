"""The run of the README of tasks: a data file, a reward function and a model in a folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from helpers.huggingface_models import save_model
from helpers.readmes import ROOT, blocks
from hooktrainer.cli import main

PAGE = ROOT / "hooktrainer" / "tasks" / "README.md"
WHOLE_PROJECT = pytest.mark.skipif(not PAGE.exists(), reason="the README is not among the tests")


@WHOLE_PROJECT
def test_the_run_of_the_readme_trains_a_model_on_a_file_with_a_reward_function(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for block in blocks(PAGE, "python", "yaml", "json"):
        if block.file_name is not None:
            Path(block.file_name).write_text(block.text)
    assert len(Path("run.yaml").read_text().splitlines()) <= 10
    save_model(Path("my_model"))

    assert main(["fit", "run.yaml"]) == 0

    rows = [json.loads(line) for line in Path("runs/run/metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2]
    assert all("reward/is_right/mean" in row for row in rows)
