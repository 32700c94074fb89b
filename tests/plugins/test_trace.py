"""trace on the fake bus: what it writes of the spans that it is given."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from hooktrainer._util.timeline import KeptTimeline
from hooktrainer.events import FitEnd, FitStart, StepStart
from hooktrainer.ports import Span
from hooktrainer.rollout.workers.messages import WORKER
from hooktrainer.rollout.workers.worker_spans import WorkerSpans
from hooktrainer.testing import FakeBus, FakeRunState, FakeTimeline, check_plugin
from hooktrainer_plugins.trace import Trace


class Run:
    """The plugin on the fake bus, in a run directory."""

    def __init__(self, directory: Path | None, **options: Any) -> None:
        self.timeline = FakeTimeline()
        self.bus = FakeBus(Trace(timeline=self.timeline, run=FakeRunState(directory=directory), **options))
        self.bus.fire(FitStart)

    def step(self, step: int, *spans: Span) -> None:
        self.timeline.extend(spans)
        self.bus.fire(StepStart, step=step)


def events(path: Path) -> list[dict[str, Any]]:
    """Return the spans of a complete file."""
    return [event for event in json.loads(path.read_text()) if event["ph"] == "X"]


def test_plugin_passes_check_plugin() -> None:
    check_plugin(Trace)


def test_spans_have_microseconds_since_the_first_and_the_track_of_their_worker(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.step(
        2,
        Span("rollout-0", "generate", 7.5, 8.0, {"version": 1, "last_version": 2, "group": 3}),
        Span("loop", "update", 8.0, 8.25, {"step": 1}),
        Span("loop", "step", 7.25, 9.0, {"step": 1}),
    )
    run.bus.fire(FitEnd, step=1)

    written = json.loads((tmp_path / "trace.json").read_text())
    names = {event["tid"]: event["args"]["name"] for event in written if event["name"] == "thread_name"}
    found = [
        (names[event["tid"]], event["name"], event["ts"], event["dur"]) for event in events(tmp_path / "trace.json")
    ]
    assert found == [
        ("loop", "step 1", 0, 1_750_000),
        ("rollout-0", "generate v1-2", 250_000, 500_000),
        ("loop", "update 1", 750_000, 250_000),
    ]
    assert events(tmp_path / "trace.json")[1]["args"] == {"version": 1, "last_version": 2, "group": 3}


def test_a_file_without_an_end_has_whole_lines_of_all_steps_but_the_last(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.step(2, Span("loop", "step", 0.0, 1.0, {"step": 1}))
    run.timeline.add("loop", "step", 1.0, 2.0, {"step": 2})

    text = (tmp_path / "trace.json").read_text()
    assert [event["name"] for event in json.loads(f"{text}]") if event["ph"] == "X"] == ["step 1"]


def test_the_size_is_limited_and_the_file_stays_complete(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = Run(tmp_path, max_mb=0.01)
    for step in range(1, 300):
        run.step(step, Span("loop", "step", float(step), step + 0.5, {"step": step}))
    run.bus.fire(FitEnd, step=299)

    path = tmp_path / "trace.json"
    assert 9_000 < path.stat().st_size <= 0.01 * 2**20
    assert [event["args"]["step"] for event in events(path)] == list(range(1, len(events(path)) + 1))
    assert caplog.text.count("has reached max_mb = 0.01") == 1


def test_a_resumed_run_keeps_the_files_of_earlier_starts(tmp_path: Path) -> None:
    for _ in range(3):
        run = Run(tmp_path)
        run.step(2, Span("loop", "step", 0.0, 1.0, {"step": 1}))
        run.bus.fire(FitEnd, step=1)

    assert sorted(path.name for path in tmp_path.iterdir()) == ["trace-2.json", "trace-3.json", "trace.json"]
    assert all(events(path) for path in tmp_path.iterdir())


def test_a_run_without_a_directory_writes_nothing_and_a_folder_that_cannot_be_written_is_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    for directory in (None, tmp_path / "file" / "run"):
        run = Run(directory)
        run.step(2, Span("loop", "step", 0.0, 1.0, {"step": 1}))
        run.bus.fire(FitEnd, step=1)

    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert "the trace cannot be written" in warnings[0]


def test_spans_that_nobody_could_take_are_counted() -> None:
    timeline = KeptTimeline(limit=3)
    timeline.add("loop", "unkept", 0.0, 1.0)
    timeline.keep()
    for number in range(5):
        timeline.add("loop", str(number), 0.0, 1.0)

    assert timeline.lost == 2
    assert [span.name for span in timeline.take()] == ["2", "3", "4"]
    assert timeline.take() == []


def test_spans_of_a_worker_on_another_machine_are_moved_by_a_constant_time() -> None:
    here, there = WorkerSpans(1), WorkerSpans(2, shares_clock=False)
    spans = [Span(WORKER, "generate", 5.0, 6.0), Span("weight sync", "stage and switch", 5.0, 6.0)]

    assert here.converted(spans, sent=6.0, received=6.5) == [Span("worker 1", "generate", 5.0, 6.0)]
    assert there.converted(spans, sent=6.0, received=106.5) == [Span("worker 2", "generate", 105.5, 106.5)]
    assert there.converted(spans, sent=6.0, received=200.0) == [Span("worker 2", "generate", 105.5, 106.5)]


@pytest.mark.parametrize("value", [0.0, -1.0, 2.0**21])
def test_invalid_sizes_are_refused(value: float) -> None:
    with pytest.raises(ValueError, match="max_mb"):
        Trace(max_mb=value)
