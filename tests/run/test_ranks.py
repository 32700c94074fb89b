"""Runs on several ranks: the rows of one process, and an end for every death and signal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from helpers.rank_runs import TINY, RankRun, rows
from hooktrainer import build_trainer, load_config

CONFIGS = Path(__file__).parents[2] / "configs"
PLUGINS = """
plugins:
  - metric_aggregation
  - weight_sync
  - {use: checkpoint, every: 2}
  - {use: "faulty_plugins:Faulty", at: AT, act: short}
  - {use: log_after_collect, sinks: [console, jsonl]}
"""

Start = Callable[..., RankRun]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a run of `run.yaml` on some ranks; kill those that a failing test leaves."""
    runs: list[RankRun] = []
    (tmp_path / "run.yaml").write_text(TINY + PLUGINS)

    def started(ranks: int, *arguments: str, **variables: str) -> RankRun:
        runs.append(RankRun(tmp_path, ranks, *(arguments or ("run.yaml",)), **variables))
        return runs[-1]

    yield started
    for run in runs:
        run.kill()


def one_process(*arguments: str, directory: Path) -> list[dict[str, float]]:
    """Return the rows of a run in this process."""
    first, *overrides = arguments
    build_trainer(load_config(first, overrides=[*overrides, "run.name=one"])).fit()
    return rows(directory, "one")


def assert_same_rows(found: list[dict[str, float]], expected: list[dict[str, float]]) -> None:
    assert [row.keys() for row in found] == [row.keys() for row in expected]
    for row, other in zip(found, expected, strict=True):
        assert row == pytest.approx(other, abs=1e-5, rel=1e-5, nan_ok=True)


@pytest.mark.slow
def test_quickstart_on_two_ranks_has_the_rows_of_one_process(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    few = [f"trainer.{key}" for key in ("train_batch_size=8", "ppo_mini_batch_size=2", "total_steps=20")]
    few += ["rollout.use=inline", "rollout.n=4", "trainer.num_warmup_batches=0", "plugins.validation.enabled=false"]
    arguments = (str(CONFIGS / "quickstart.yaml"), *few)
    run = start(2, *arguments, "run.name=two")
    expected = one_process(*arguments, directory=tmp_path)

    assert run.ended() == [0, 0]
    assert len(expected) == 20
    assert_same_rows(rows(tmp_path, "two"), expected)
