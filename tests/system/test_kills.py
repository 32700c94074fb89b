"""Runs killed by SIGKILL and resumed until they complete lose and repeat nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

STRATEGIES = ("drop", "requeue", "wait", "pace")
HARNESS = Path(__file__).parents[1] / "helpers" / "kills.py"


FAST = ("inline-drop", "thread-wait", "thread-requeue")
ALL = tuple(f"{engine}-{how}" for engine in ("inline", "thread", "process") for how in STRATEGIES)


def run(runs: int, seed: int, modes: Sequence[str]) -> list[dict[str, object]]:
    found = subprocess.run(
        [sys.executable, HARNESS, "--runs", str(runs), "--seed", str(seed), "--modes", *modes],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    print(found.stdout)
    return [json.loads(line) for line in found.stdout.splitlines()]


@pytest.mark.slow
def test_runs_killed_at_random_points_resume_to_the_results_of_uninterrupted_runs() -> None:
    found = run(8, seed=1, modes=FAST)

    assert [(mode["mode"], mode["runs"]) for mode in found] == [(mode, 8) for mode in FAST]
    assert all(mode["killed in a save"] and mode["killed at a time"] for mode in found)


@pytest.mark.proof
def test_runs_of_every_engine_and_strategy_that_are_killed_anywhere_end_as_if_they_had_not_been() -> None:
    found = run(9, seed=2, modes=ALL)

    assert sum(mode["killed in a save"] + mode["killed at a time"] for mode in found) >= 100


@pytest.mark.proof
def test_two_hundred_runs_killed_at_random_points_resume_to_the_results_of_uninterrupted_runs() -> None:
    found = run(200, seed=2, modes=FAST)

    assert all(mode["killed in a save"] > 50 and mode["killed at a time"] > 50 for mode in found)
