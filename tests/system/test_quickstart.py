"""The shipped quickstart learns its task."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hooktrainer import build_trainer, load_config

QUICKSTART = Path(__file__).parents[2] / "configs" / "quickstart.yaml"


def train(seed: int) -> tuple[list[dict[str, float]], float]:
    """Run the quickstart; return its rows and seconds."""
    config = load_config(QUICKSTART, overrides=[f"seed={seed}"])
    result = build_trainer(config).fit()
    path = config.run.dir / config.run.name / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()], result.seconds


def scores(rows: list[dict[str, float]]) -> list[float]:
    return [row["val/score/mean"] for row in rows if "val/score/mean" in row]


@pytest.mark.slow
def test_quickstart_learns_to_sort_and_writes_one_row_per_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    rows, _ = train(seed=0)

    assert [row["step"] for row in rows] == list(range(1, len(rows) + 1))
    assert scores(rows)[-1] >= 0.95
    assert max(row["training/off_policy/staleness/max"] for row in rows) == 2


@pytest.mark.proof
@pytest.mark.parametrize("seed", range(5))
def test_quickstart_reaches_its_score_with_every_seed(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    rows, seconds = train(seed)

    total, reached = 0.0, None
    for row in rows:
        total += row["timing_s/step"]
        if reached is None and row.get("val/score/mean", 0.0) >= 0.95:
            reached = (row["step"], total)
    print(f"seed {seed}: 0.95 reached at {reached}, final {scores(rows)[-1]:.3f}, {seconds:.0f} s in all")
    assert reached is not None
    assert reached[1] <= 90
