"""Runs killed by SIGKILL and resumed until they complete lose and repeat nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HARNESS = Path(__file__).parents[1] / "helpers" / "kills.py"


def run(runs: int, seed: int) -> list[dict[str, object]]:
    found = subprocess.run(
        [sys.executable, HARNESS, "--runs", str(runs), "--seed", str(seed)],
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
    found = run(8, seed=1)

    assert [(mode["mode"], mode["runs"]) for mode in found] == [("inline", 8), ("wait", 8), ("requeue", 8)]
    assert all(mode["killed in a save"] and mode["killed at a time"] for mode in found)


@pytest.mark.proof
def test_two_hundred_runs_killed_at_random_points_resume_to_the_results_of_uninterrupted_runs() -> None:
    found = run(200, seed=2)

    assert all(mode["killed in a save"] > 50 and mode["killed at a time"] > 50 for mode in found)
