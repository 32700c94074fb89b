"""Values that functions of the user return are checked when they are called, after the run directory was created."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.config_yaml import PLUGINS, written
from hooktrainer.cli import main

CODE = """
import attrs
from hooktrainer.tasks.sort_digits import SortDigits


def loss(logprobs):
    return None


@attrs.frozen(kw_only=True)
class Scores(SortDigits):
    def grade(self, truth, answer):
        return float("inf")


@attrs.frozen(kw_only=True)
class Prompts(SortDigits):
    def train(self, seed):
        yield from [7] * 8
"""


@pytest.mark.parametrize(
    ("override", "code", "message", "created"),
    [
        ("algorithm.policy_loss=mine.py:loss", 2, "algorithm.policy_loss: 'FILE:loss' returned None", True),
        ("task.use=mine.py:Scores", 1, "Scores.score returned inf for the answer", True),
        ("task.use=mine.py:Prompts", 2, "training prompt 1 of epoch 1 is 7 (int), expected an Example", False),
    ],
)
def test_a_wrong_result_ends_the_run_with_the_function(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    override: str,
    code: int,
    message: str,
    created: bool,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(CODE)
    assert main(["fit", str(written(tmp_path, PLUGINS)), override]) == code
    assert message.replace("FILE", str(tmp_path / "mine.py")) in capsys.readouterr().err
    assert (tmp_path / "runs" / "run").is_dir() is created
