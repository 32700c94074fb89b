"""The dashboard of a run in a terminal."""

from __future__ import annotations

import io
import math
from pathlib import Path

import pytest
from rich.console import Console

from hooktrainer.ports import RunInfo
from hooktrainer.sinks.console import ConsoleSink
from hooktrainer.sinks.dashboard import Dashboard, duration, sparkline

ROW = {
    "critic/score/mean": 0.431,
    "actor/pg_loss": -0.01234,
    "actor/entropy": 1.234,
    "actor/grad_norm": 0.52,
    "training/off_policy/staleness/mean": 1.25,
    "response_length/mean": 6.5,
    "timing_s/step": 3.21,
    "val/score/mean": 0.5,
}


def drawn(dashboard: Dashboard, *, width: int = 100, height: int = 30) -> list[str]:
    """Return the lines of a dashboard, without the empty last line."""
    console = Console(file=io.StringIO(), force_terminal=False, width=width, height=height, _environ={})
    console.print(dashboard)
    return shown(console).rstrip().splitlines()


def terminal(*, width: int = 100, color: bool = True) -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=width, height=30, no_color=not color, _environ={})


def shown(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


class TestDisplay:
    def test_a_terminal_shows_progress_and_curves(self, tmp_path: Path) -> None:
        console = terminal()
        sink = ConsoleSink()
        sink.console = console
        sink.open(RunInfo(name="quickstart", total_steps=4))
        for step in (1, 2, 3):
            sink.write(step, ROW | {"critic/score/mean": step / 4})
        sink.close("completed")
        last = shown(console).rpartition("quickstart")[2]
        assert "step 3/4" in last
        assert "0:10 · 0:03 left" in last
        assert "▁▅█" in last
        for label in ("val score", "score", "loss", "entropy", "staleness", "response length", "step seconds"):
            assert label in last
        assert shown(console).endswith("\x1b[?25h"), "the cursor comes back"

    def test_no_color_disables_colors(self, tmp_path: Path) -> None:
        console = terminal(color=False)
        sink = ConsoleSink()
        sink.console = console
        sink.open(RunInfo(total_steps=2))
        sink.write(1, ROW)
        sink.close("completed")
        assert "\x1b[36m" not in shown(console)

    def test_no_progress_bar_is_shown_without_total_steps(self) -> None:
        console = terminal()
        dashboard = Dashboard("run")
        dashboard.add(7, ROW)
        console.print(dashboard)
        assert "step 7" in shown(console)
        assert "left" not in shown(console)

    def test_columns_have_headings_and_throughput_has_a_curve(self) -> None:
        dashboard = Dashboard("run", 4)
        for step in (1, 2):
            dashboard.add(step, ROW | {"perf/throughput": 45_000.0 + step})
        _, headings, *_, last = drawn(dashboard)
        assert headings.split() == ["curve", "now", "min", "to", "max"]
        assert headings.index("min to max") == last.index("45,001 to 45,002")
        assert last.split()[0] == "tokens/s"

    def test_a_narrow_terminal_keeps_labels_and_numbers_whole(self) -> None:
        dashboard = Dashboard("run", 4)
        dashboard.add(1, ROW)
        for width, has_range in ((100, True), (50, False), (30, False)):
            *_, length, _ = drawn(dashboard, width=width)
            assert length.startswith("response length")
            assert ("6.5 to 6.5" in length) is has_range
            assert "6.5" in length
            assert "…" not in length

    @pytest.mark.parametrize("height", [1, 3, 4, 7, 30])
    def test_a_low_terminal_shows_fewer_curves(self, height: int) -> None:
        console = Console(file=io.StringIO(), force_terminal=True, width=100, height=height, _environ={})
        sink = ConsoleSink()
        sink.console = console
        sink.open(RunInfo(total_steps=4))
        sink.write(1, ROW)
        lines = drawn(sink._dashboard, height=height)
        assert len(lines) == (1 if height < 4 else 2 + min(7, height - 3))
        assert "..." not in shown(console)

    def test_cursor_stays_on_an_empty_line_until_close(self, tmp_path: Path) -> None:
        console = terminal()
        sink = ConsoleSink()
        sink.console = console
        sink.open(RunInfo(total_steps=4))
        sink.write(1, ROW)
        assert shown(console).endswith("\n"), "the cursor waits on an empty line"
        sink.close("completed")
        assert not shown(console).replace("\x1b[?25h", "").endswith("\n\n")

    @pytest.mark.parametrize("width", [20, 40, 80, 200])
    def test_lines_fit_the_terminal(self, width: int) -> None:
        console = Console(file=io.StringIO(), force_terminal=False, width=width, _environ={})
        dashboard = Dashboard("a-run-with-a-rather-long-name", 100)
        for step in range(1, 60):
            dashboard.add(step, ROW)
        console.print(dashboard)
        assert max(map(len, shown(console).splitlines())) <= width


@pytest.mark.parametrize(
    ("values", "width", "expected"),
    [
        ([], 5, ""),
        ([1.0], 0, ""),
        ([3.0, 3.0], 5, "▁▁"),
        ([0, 1, 2, 3, 4, 5, 6, 7], 8, "▁▂▃▄▅▆▇█"),
        ([0, 0, 7, 7], 2, "▁█"),
        ([1, 1.25], 2, "▁▄"),
        ([-1, -1.001], 2, "▁▁"),
        ([0, math.nan, 7, math.inf], 8, "▁█"),
    ],
)
def test_sparkline_spans_the_lowest_to_the_highest_mean(values: list[float], width: int, expected: str) -> None:
    assert sparkline(values, width) == expected


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (7.4, "0:07"), (185, "3:05"), (3723, "1:02:03")])
def test_durations_are_formatted_as_hours_minutes_seconds(seconds: float, text: str) -> None:
    assert duration(seconds) == text
