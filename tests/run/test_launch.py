"""Runs whose other ranks `hooktrainer fit` starts: the rows of one process, and nothing left after every end."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from helpers.rank_runs import TINY, rows
from helpers.subprocess_runs import FIT, FIT_ON_RANKS, SubprocessRun, config, processes_of
from hooktrainer import build_trainer, load_config
from hooktrainer.errors import ConfigError
from hooktrainer.run.ranks import Place

WITHIN_S = 30.0
"""10 s on a machine that is not busy."""
ON_RANKS = ("learner.ranks=2", "learner.timeout_s=60")
WAITING = config(at="iteration_start", act="sleep")
"""A run whose rank 0 waits in its second step, as it does for answers."""

BROKEN = """
import os

if os.environ.get("RANK") == "1":
    os._exit(7)

def advantages(rewards, groups):
    return rewards
"""


def started(directory: Path, *overrides: str, text: str = WAITING) -> SubprocessRun:
    (directory / "run.yaml").write_text(text)
    return SubprocessRun(directory, *FIT, "run.yaml", *ON_RANKS, *overrides)


def follower_of(run: SubprocessRun) -> int:
    """Return the pid of rank 1."""
    (rank,) = [
        int(path.parent.name)
        for path in Path("/proc").glob("[0-9]*/environ")
        if _parent(path.parent) == run.process.pid and b"spawn_main" in (path.parent / "cmdline").read_bytes()
    ]
    return rank


def _parent(process: Path) -> int | None:
    try:
        return int((process / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None


@pytest.mark.slow
def test_ranks_have_the_rows_of_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = TINY + "plugins: [metric_aggregation, weight_sync, {use: log_after_collect, sinks: [console, jsonl]}]"
    run = started(tmp_path, "run.name=two", text=text)
    build_trainer(load_config("run.yaml", overrides=["run.name=one"])).fit()

    assert run.ended() == 0, run.err
    assert "ranks of the learner: 2" in run.out
    found, expected = rows(tmp_path, "two"), rows(tmp_path, "one")
    assert [row.keys() for row in found] == [row.keys() for row in expected]
    for row, other in zip(found, expected, strict=True):
        assert row == pytest.approx(other, abs=1e-5, rel=1e-5, nan_ok=True)
    assert run.left() == []


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_to_the_session_interrupts_the_run(number: signal.Signals, code: int, tmp_path: Path) -> None:
    run = started(tmp_path)
    run.until("AT")
    since = run.send_all(number)

    assert run.ended() == code, run.err
    assert time.monotonic() - since < WITHIN_S
    assert [end.split()[0] for end in run.ends] == ["interrupted"]
    assert run.left() == []


@pytest.mark.slow
def test_a_killed_rank_ends_the_run_as_failed(tmp_path: Path) -> None:
    run = started(tmp_path)
    run.until("AT")
    since = time.monotonic()
    os.kill(follower_of(run), signal.SIGKILL)

    assert run.ended() == 1
    assert time.monotonic() - since < WITHIN_S
    assert "rank 1 ended without a message" in run.err
    assert [end.split()[0] for end in run.ends] == ["failed"]
    assert run.left() == []


@pytest.mark.slow
def test_no_rank_is_left_when_rank_0_is_killed(tmp_path: Path) -> None:
    run = started(tmp_path)
    run.until("AT")
    since = run.send(signal.SIGKILL)

    assert run.ended() == -signal.SIGKILL
    while processes_of(run.process.pid) and time.monotonic() - since < WITHIN_S:
        time.sleep(0.01)
    assert processes_of(run.process.pid) == []


@pytest.mark.slow
def test_a_rank_that_ends_before_it_meets_rank_0_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(BROKEN)
    run = started(tmp_path, "algorithm.adv_estimator=broken.py:advantages")

    assert run.ended() == 1
    assert "rank 1 ended with exit code 7 before it met rank 0" in run.err
    assert run.left() == []


@pytest.mark.slow
@pytest.mark.parametrize("command", [(*FIT, *ON_RANKS), FIT_ON_RANKS], ids=["ranks", "torchrun"])
def test_faults_of_a_configuration_are_shown_once(command: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(config().replace("digits: 3", "digits: 3, digitz: 3"))
    run = SubprocessRun(tmp_path, *command, "run.yaml")

    assert run.ended() != 0
    assert run.err.count("Did you mean 'digits'") == 1


@pytest.mark.slow
def test_a_rank_that_alone_cannot_read_the_configuration_is_an_error(tmp_path: Path) -> None:
    text = config().replace("digits: 3", 'digits: "${oc.decode:${oc.env:DIGITS${oc.env:RANK}}}"')
    (tmp_path / "run.yaml").write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DIGITS0", "3")
        patch.setenv("DIGITS1", "-3")
        run = SubprocessRun(tmp_path, *FIT_ON_RANKS, "run.yaml")

    assert run.ended() != 0
    assert "rank 1 cannot read the configuration, which rank 0 can: " in run.err


def test_a_trainer_of_several_ranks_is_refused_in_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text(TINY + "plugins: [metric_aggregation, weight_sync]")
    with pytest.raises(ConfigError, match="2 ranks are started by the command `hooktrainer fit`"):
        build_trainer(load_config("run.yaml", overrides=["learner.ranks=2"]))


@pytest.mark.parametrize(("ranks", "refused"), [(1, False), (2, False), (3, True)])
def test_ranks_that_torchrun_did_not_start_are_refused(ranks: int, refused: bool) -> None:
    place = Place(rank=0, size=2, local_rank=0, host="node")
    if refused:
        with pytest.raises(ConfigError, match=r"learner\.ranks.*3, but this run was started on 2 ranks"):
            place.require(ranks)
    else:
        place.require(ranks)
