"""Traces of whole runs: which tracks they have, and that the spans of a track nest."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from hooktrainer.cli import main

RUN = """
task: {use: sort_digits, digits: 3}
model: {use: decoder, layers: 1, width: 16, heads: 2}
rollout: {use: thread, n: 2, max_response_length: 4}
trainer: {total_steps: 3, train_batch_size: 4, ppo_mini_batch_size: 2, parameter_sync_step: 2}
plugins: [metric_aggregation, weight_sync, {use: log_after_collect, sinks: [jsonl]}, trace]
"""
KILLER = """
import os
import signal

import attrs

from hooktrainer import Plugin, on
from hooktrainer.events import StepEnd


@attrs.define
class Killer(Plugin):
    @on(StepEnd)
    def kill(self, event: StepEnd) -> None:
        if event.step == 3:
            os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def in_temporary_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text(RUN)


def tracks(text: str) -> dict[str, list[dict[str, Any]]]:
    """Return the spans by track, in the order of their start; those that start together, the longest first."""
    events = json.loads(text)
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in names.values()}
    for event in events:
        if event["ph"] == "X":
            found[names[event["tid"]]].append(event)
    return {name: sorted(spans, key=lambda span: (span["ts"], -span["dur"])) for name, spans in found.items()}


def assert_nested(spans: Sequence[Mapping[str, Any]]) -> None:
    """Check that each span lies inside the open one, or begins after it."""
    open_until: list[int] = []
    for span in spans:
        start, end = span["ts"], span["ts"] + span["dur"]
        assert 0 <= start <= end
        while open_until and open_until[-1] <= start:
            open_until.pop()
        assert not open_until or end <= open_until[-1], span
        open_until.append(end)


def names_of(spans: Sequence[Mapping[str, Any]]) -> list[str]:
    return [span["name"] for span in spans]


@pytest.mark.parametrize(
    ("engine", "workers"),
    [
        ("use=inline", []),
        ("use=thread rollout.workers=2", ["rollout-0", "rollout-1"]),
        pytest.param("use=process rollout.workers=2", ["worker 0", "worker 1"], marks=pytest.mark.slow),
    ],
)
def test_a_trace_has_nested_spans_of_the_loop_its_handlers_syncs_and_workers(engine: str, workers: list[str]) -> None:
    assert main(["fit", "run.yaml", *f"rollout.{engine}".split()]) == 0

    found = tracks(Path("runs", "run", "trace.json").read_text())
    own = found.keys() - {"loop", "weight sync"}
    assert found.keys() >= {"loop", "weight sync"}
    assert own <= set(workers)
    assert bool(own) == bool(workers)  # one worker may do all before another one is ready
    for spans in found.values():
        assert_nested(spans)
    loop = names_of(found["loop"])
    assert loop.count("weight_sync.sync") == 3
    for step in (1, 2, 3):
        assert loop.count(f"step {step}") == loop.count(f"step_end {step}") == 1
        assert loop.count(f"update {step}") == loop.count(f"sample {step}") == 2
        assert loop.index(f"step {step}") < loop.index(f"update {step}") < loop.index(f"step_end {step}")
    generated = [span for spans in found.values() for span in spans if span["name"].startswith("generate")]
    assert {span["args"]["group"] for span in generated} >= set(range(4))
    assert all(0 <= span["args"]["version"] <= span["args"]["last_version"] <= 3 for span in generated)
    assert len(found["weight sync"]) >= 2


def test_a_killed_run_leaves_a_file_that_lacks_only_its_end(tmp_path: Path) -> None:
    (tmp_path / "killer.py").write_text(KILLER)
    (tmp_path / "run.yaml").write_text(RUN.replace("trace]", 'trace, {use: "killer.py:Killer"}]'))
    killed = subprocess.run(
        [sys.executable, "-m", "hooktrainer", "fit", "run.yaml"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert killed.returncode == -signal.SIGKILL, killed.stderr
    found = tracks(Path("runs", "run", "trace.json").read_text() + "]")
    for spans in found.values():
        assert_nested(spans)
    assert {f"step {step}" for step in (1, 2)} <= set(names_of(found["loop"]))
