"""A plugin of another installed package is found, listed and run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

RUN = """
task: {use: sort_digits, digits: 3}
model: {use: decoder, layers: 1, width: 16, heads: 2}
rollout: {use: inline, n: 2, max_response_length: 4}
trainer: {total_steps: 5, train_batch_size: 2, ppo_mini_batch_size: 2}
plugins: [metric_aggregation, weight_sync, {use: early_stop, step: 2}, {use: log_after_collect, sinks: [jsonl]}]
"""
PLUGIN = '''
import attrs

from hooktrainer import Plugin, Priority, on
from hooktrainer.events import StepEnd


@attrs.define(kw_only=True)
class EarlyStop(Plugin):
    """Stop at a step."""

    step: int = 1
    """Where to stop."""

    @on(StepEnd, priority=Priority.REPORT, needs=["metrics.row"])
    def stop(self, event: StepEnd) -> None:
        if event.step == self.step:
            event.control.stop("far enough")
'''


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """Return a folder with an installed distribution, in the layout of pip."""
    site = tmp_path / "site"
    info = site / "my_lab-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "my_lab_guards.py").write_text(PLUGIN)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-lab\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[hooktrainer.plugins]\nearly_stop = my_lab_guards:EarlyStop\n")
    return site


def hooktrainer(installed: Path, cwd: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "hooktrainer", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=cwd, env=environment).stdout


def test_installed_plugin_is_listed_with_its_options(installed: Path, tmp_path: Path) -> None:
    listed = hooktrainer(installed, tmp_path, "plugins", "early_stop")

    assert "Stop at a step." in listed
    assert "step: int = 1" in listed
    assert "Where to stop." in listed


@pytest.mark.slow
def test_installed_plugin_is_planned_and_run(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(RUN)

    assert "early_stop.stop" in hooktrainer(installed, tmp_path, "plan", "run.yaml")
    assert "stopped (far enough): 2 steps" in hooktrainer(installed, tmp_path, "fit", "run.yaml")
