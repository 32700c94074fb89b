"""watchdog on the fake bus."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from hooktrainer.events import FitEnd, FitStart, StepStart
from hooktrainer.testing import FakeBus, check_plugin
from hooktrainer_plugins.watchdog import Watchdog


class Pipe:
    """Standard error that sets an event when text is written."""

    def __init__(self) -> None:
        self.reports: list[str] = []
        self.written = threading.Condition()

    def write(self, text: str) -> None:
        with self.written:
            self.reports.append(text)
            self.written.notify_all()

    def flush(self) -> None:
        pass

    def wait_for(self, count: int) -> None:
        with self.written:
            assert self.written.wait_for(lambda: len(self.reports) >= count, 10)


def plugged(monkeypatch: pytest.MonkeyPatch) -> Pipe:
    pipe = Pipe()
    monkeypatch.setattr(sys, "stderr", pipe)  # in the test itself: pytest puts its own there after the fixtures
    return pipe


def hanging_here(pipe: Pipe, count: int) -> None:
    pipe.wait_for(count)


def test_plugin_passes_check_plugin() -> None:
    check_plugin(Watchdog)


def test_stacks_of_all_threads_are_printed_while_a_step_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = plugged(monkeypatch)
    go_on = threading.Event()
    other = threading.Thread(target=go_on.wait, name="rollout-7", daemon=True)
    other.start()
    bus = FakeBus(Watchdog(timeout_s=0.05))
    bus.fire(FitStart)
    bus.fire(StepStart, step=3)
    pipe.wait_for(1)
    hanging_here(pipe, len(pipe.reports) + 1)
    go_on.set()
    bus.fire(FitEnd)

    report = pipe.reports[1]
    assert report.startswith("watchdog: step 3 has taken 0.")
    assert "more than timeout_s = 0.05;" in report.partition("\n")[0]
    assert "thread MainThread:\n" in report
    assert "in hanging_here\n" in report
    assert "thread rollout-7:\n" in report
    assert "thread watchdog:" not in report


def test_max_reports_limits_the_reports_of_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = plugged(monkeypatch)
    bus = FakeBus(Watchdog(timeout_s=0.02, max_reports=2))
    bus.fire(FitStart)
    pipe.wait_for(2)
    bus.fire(StepStart, step=1)
    pipe.wait_for(4)
    bus.fire(FitEnd)

    places = [report.split(" has taken")[0] for report in pipe.reports]
    assert places[:4] == ["watchdog: the start of the run"] * 2 + ["watchdog: step 1"] * 2


def test_fast_steps_print_no_stacks_and_the_thread_ends_with_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = plugged(monkeypatch)
    bus = FakeBus(Watchdog(timeout_s=60))
    bus.fire(FitStart)
    assert [thread.daemon for thread in threading.enumerate() if thread.name == "watchdog"] == [True]
    for step in range(1, 100):
        bus.fire(StepStart, step=step)
    bus.fire(FitEnd)

    assert not [thread for thread in threading.enumerate() if thread.name == "watchdog"]
    assert pipe.reports == []


def test_watchdog_thread_does_not_keep_the_process_alive() -> None:
    script = (
        "from hooktrainer.events import FitStart\nfrom hooktrainer.testing import FakeBus\n"
        "from hooktrainer_plugins.watchdog import Watchdog\nFakeBus(Watchdog(timeout_s=600)).fire(FitStart)\n"
    )

    assert subprocess.run([sys.executable, "-c", script], timeout=20, check=False).returncode == 0
