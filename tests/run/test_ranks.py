"""Runs on several ranks: the rows of one process, and an end for every death and signal."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from helpers.rank_runs import TINY, RankRun, rows
from helpers.subprocess_runs import FIT_ON_RANKS, SubprocessRun
from hooktrainer import build_trainer, load_config
from hooktrainer.errors import ConfigError
from hooktrainer.run.ranks import Place

WITHIN_S = 30.0
"""10 s on a machine that is not busy."""
CONFIGS = Path(__file__).parents[2] / "configs"
PLUGINS = """
plugins:
  - metric_aggregation
  - weight_sync
  - {use: checkpoint, every: 2}
  - {use: "helpers.faulty_plugins:Faulty", at: nowhere, act: short}
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


@pytest.mark.slow
def test_checkpoint_of_two_ranks_resumes_on_one_and_on_three(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mini-batches of 1, 3 and 5 groups leave a rank without a group, or ranks with unequal micro-batches."""
    monkeypatch.chdir(tmp_path)
    arguments = ("run.yaml", *sizes(3), "optim.micro_batch_size=4")
    first = start(2, *arguments, "trainer.total_steps=2", "run.name=two")
    expected = one_process(*arguments, directory=tmp_path)
    assert first.ended() == [0, 0]
    assert_same_rows(rows(tmp_path, "two"), expected[:2])

    resumed = (*arguments, "run.resume=runs/two")
    three = start(3, *resumed, "run.name=three")
    build_trainer(load_config(resumed[0], overrides=[*resumed[1:], "run.name=again"])).fit()
    assert three.ended() == [0, 0, 0]
    assert [row["step"] for row in rows(tmp_path, "three")] == [3, 4]
    for name in ("three", "again"):
        assert_same_rows(rows(tmp_path, name), expected[2:])


@pytest.mark.slow
@pytest.mark.parametrize(("mini_batch", "micro_batch"), [(1, 8), (5, 4)])
def test_ranks_without_a_group_or_with_unequal_shares_have_the_rows_of_one_process(
    mini_batch: int, micro_batch: int, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ("run.yaml", *sizes(mini_batch), f"optim.micro_batch_size={micro_batch}", "trainer.total_steps=2")
    run = start(2, *arguments, "run.name=two")
    expected = one_process(*arguments, directory=tmp_path)

    assert run.ended() == [0, 0]
    assert_same_rows(rows(tmp_path, "two"), expected)


def sizes(mini_batch: int) -> tuple[str, str]:
    """Return the overrides for mini-batches of this many groups, two per step."""
    return f"trainer.train_batch_size={2 * mini_batch}", f"trainer.ppo_mini_batch_size={mini_batch}"


WAITING = ("run.yaml", "trainer.total_steps=1000", "plugins.faulty.at=iteration_start", "plugins.faulty.act=sleep")
"""A run whose rank 0 waits in its second step, as it does for answers."""
UPDATING = ("run.yaml", "trainer.total_steps=1000", "algorithm.adv_estimator=helpers.rank_runs:faulty")
"""A run in which one rank fails in the third update."""


@pytest.mark.slow
class TestDeaths:
    def test_killed_rank_ends_a_waiting_run_as_failed(self, start: Start) -> None:
        """As under torchrun, rank 0 gets SIGTERM when another rank has ended."""
        run = start(2, *WAITING)
        run.until("AT iteration_start")
        since = run.send(signal.SIGKILL, 1)
        run.send(signal.SIGTERM, 0)

        assert run.ended() == [1, -signal.SIGKILL]
        assert time.monotonic() - since < WITHIN_S
        assert "the run failed: rank 1 ended without a message" in run.texts()["rank0.err"]
        assert [end.split()[0] for end in run.ends] == ["failed"]

    def test_killed_rank_is_noticed_without_a_signal(self, start: Start) -> None:
        run = start(2, *WAITING)
        run.until("AT iteration_start")
        since = run.send(signal.SIGKILL, 1)

        assert run.ended() == [1, -signal.SIGKILL]
        assert time.monotonic() - since < WITHIN_S
        assert [end.split()[0] for end in run.ends] == ["failed"]

    def test_rank_that_is_killed_in_an_update_ends_all_ranks(self, start: Start) -> None:
        run = start(3, *UPDATING, FAULTY_RANK="1", FAULT="kill")

        assert run.ended() == [1, -signal.SIGKILL, 1]
        assert "the run failed: rank 1 ended without a message" in run.texts()["rank0.err"]
        assert [end.split()[0] for end in run.ends] == ["failed"]

    def test_error_of_a_rank_is_the_error_of_the_run(self, start: Start) -> None:
        run = start(2, *UPDATING, FAULTY_RANK="1", FAULT="raise")

        assert run.ended() == [1, 1]
        error = run.texts()["rank0.err"]
        assert "the run failed: rank 1 failed: ValueError: boom" in error
        assert "in faulty" in error
        assert [end.split()[0] for end in run.ends] == ["failed"]

    def test_other_ranks_leave_when_rank_0_is_killed(self, start: Start) -> None:
        run = start(2, *WAITING)
        run.until("AT iteration_start")
        since = run.send(signal.SIGKILL, 0)

        assert run.ended() == [-signal.SIGKILL, 1]
        assert time.monotonic() - since < WITHIN_S
        assert "rank 1: rank 0 has ended" in run.texts()["rank1.err"]
        assert run.ends == []

    def test_other_ranks_leave_when_rank_0_is_killed_in_an_update(self, start: Start) -> None:
        run = start(2, *UPDATING, FAULTY_RANK="0", FAULT="kill")

        assert run.ended() == [-signal.SIGKILL, 1]
        assert run.ends == []


@pytest.mark.slow
class TestSignals:
    @pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
    def test_signal_to_all_ranks_interrupts_the_run(self, number: signal.Signals, code: int, start: Start) -> None:
        run = start(2, *WAITING)
        run.until("AT iteration_start")
        since = run.send(number)

        assert run.ended() == [code, 0]
        assert time.monotonic() - since < WITHIN_S
        assert [end.split()[0] for end in run.ends] == ["interrupted"]

    def test_rank_that_is_stopped_fails_the_run_at_a_signal(self, start: Start) -> None:
        run = start(2, *WAITING)
        run.until("AT iteration_start")
        run.send(signal.SIGSTOP, 1)
        run.send(signal.SIGTERM, 0)
        run.ranks[0].join(60)
        run.send(signal.SIGKILL, 1)

        assert run.ended() == [1, -signal.SIGKILL]
        assert "rank 1 did not answer rank 0 within 2 s" in run.texts()["rank0.err"]
        assert [end.split()[0] for end in run.ends] == ["failed"]


@pytest.mark.slow
def test_configuration_that_differs_on_a_rank_is_refused(start: Start, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text((TINY + PLUGINS).replace("lr: 1e-3", 'lr: "${oc.env:RATE${oc.env:RANK}}"'))
    run = start(2, "run.yaml", RATE0="0.001", RATE1="0.002")

    assert run.ended() == [2, 0]
    error = run.texts()["rank0.err"]
    assert "the configuration of rank 1 differs from that of rank 0: -  lr: 0.001; +  lr: 0.002" in error
    assert not list(tmp_path.glob("runs/*"))


@pytest.mark.slow
def test_torchrun_shows_why_a_run_failed_and_exits_with_1(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(TINY + PLUGINS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAULTY_RANK", "1")
        patch.setenv("FAULT", "kill")
        run = SubprocessRun(tmp_path, *FIT_ON_RANKS, *UPDATING)

    assert run.ended() == 1
    assert "the run failed: rank 1 ended without a message" in run.err
    assert [end.split()[0] for end in run.ends] == ["failed"]


@pytest.mark.slow
def test_ranks_under_torchrun_exit_with_0(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(TINY + PLUGINS)
    run = SubprocessRun(tmp_path, *FIT_ON_RANKS, "run.yaml")

    assert run.ended() == 0, run.err
    assert "ranks of the learner: 2" in run.out
    assert run.rows() == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, None),
        ({"RANK": "0", "WORLD_SIZE": "1"}, None),
        (
            {"RANK": "3", "WORLD_SIZE": "4", "MASTER_ADDR": "node", "LOCAL_RANK": "1"},
            Place(rank=3, size=4, local_rank=1, host="node"),
        ),
    ],
)
def test_place_of_a_process_is_that_of_its_environment(variables: dict[str, str], expected: Place | None) -> None:
    assert Place.of_environment(variables) == expected


def test_incomplete_environment_of_a_rank_is_refused() -> None:
    with pytest.raises(ConfigError, match="RANK=1, WORLD_SIZE=2, but not completely"):
        Place.of_environment({"RANK": "1", "WORLD_SIZE": "2"})
