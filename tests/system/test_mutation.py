"""The tests detect a swap of the bands REDUCE and REPORT."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import hooktrainer
import hooktrainer_plugins

TESTS = Path(__file__).parents[1]
ROWS = "test_trainer.py::TestSteps::test_row_is_the_mean_of_its_iterations_in_every_plugin_order"


def run_mutated(tmp_path: Path, test: str, mutations: dict[str, tuple[str, str]]) -> str:
    """The outcome of a test on a copy of the packages in which some text was replaced."""
    for package in (hooktrainer, hooktrainer_plugins):
        source = Path(str(package.__file__)).parent
        shutil.copytree(source, tmp_path / source.name, ignore=shutil.ignore_patterns("__pycache__"))
    for name, (old, new) in mutations.items():
        path = tmp_path / name
        text = path.read_text()
        assert text.count(old) == 1, f"{name} no longer says {old!r}"
        path.write_text(text.replace(old, new))
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", str(TESTS / test)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.stdout


SWAP = {"hooktrainer/events.py": ("    REDUCE = 500\n    REPORT = 600\n", "    REPORT = 500\n    REDUCE = 600\n")}
BLIND = {"hooktrainer/bus/plan.py": ("            raise PlanError(faults)\n", "            pass\n")}
TRUSTING = {
    "hooktrainer/metrics/record.py": (
        "        if self._row is None:\n            raise RecordError(",
        "        if False:\n            raise RecordError(",
    )
}


@pytest.mark.slow
def test_unchanged_copy_passes(tmp_path: Path) -> None:
    assert "1 passed" in run_mutated(tmp_path, ROWS, {})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mutations", "notices"),
    [
        (SWAP, "reads 'metrics.row' before metric_aggregation.reduce"),
        (SWAP | BLIND, "was read before it was sealed"),
        (SWAP | BLIND | TRUSTING, "1 failed"),
    ],
    ids=["the plan", "the record", "the rows"],
)
def test_swapping_reduce_and_report_is_detected_by(
    tmp_path: Path, mutations: dict[str, tuple[str, str]], notices: str
) -> None:
    output = run_mutated(tmp_path, ROWS, mutations)

    assert "1 failed" in output
    assert notices in output
