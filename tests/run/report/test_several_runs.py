"""The report of several runs: seeds are grouped, configurations overlaid, and their settings compared."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from helpers.report_pages import report
from helpers.run_directories import row, written
from hooktrainer.cli import main
from hooktrainer.run.report.curves import curve_of
from hooktrainer.run.rows import Column


def column(values: dict[int, float]) -> Column:
    return Column(np.array(list(values)), np.array(list(values.values())))


def three_runs(folder: Path) -> list[Path]:
    return [
        written(folder / "slow-0", [row(1, 0.25), row(2, 0.5)], seed=0),
        written(folder / "fast-0", [row(1, 0.75)], seed=0, lr=0.01),
        written(folder / "slow-1", [row(1, 0.75), row(2, 1.0), row(3, 0.5)], seed=1),
    ]


def test_seeds_are_one_curve_with_their_range(tmp_path: Path) -> None:
    page = report(*three_runs(tmp_path))

    assert page.data["groups"] == [{"name": "slow", "seeds": 2}, {"name": "fast-0", "seeds": 1}]
    score = page.curve("critic/score/mean")
    assert (score["steps"], score["y"]) == ([1, 2, 3], [0.5, 0.75, 0.5])
    assert (score["low"], score["high"]) == ([0.25, 0.5, 0.5], [0.75, 1, 0.5])
    assert "slow 0, 1 critic/score/mean 0.75 (0.5 to 1) 0.5 (0.5 to 0.5)" in page.said
    assert "Lines are means over seeds" in page.said


def test_only_settings_that_differ_are_listed(tmp_path: Path) -> None:
    said = report(*three_runs(tmp_path)).said
    table = said[said.index("Settings that differ") : said.index("Runs run seed state")]
    assert table == "Settings that differ setting slow fast-0 optim.lr 0.0005 0.01 "


def test_each_metric_of_overlaid_runs_has_its_chart(tmp_path: Path) -> None:
    sections = report(*three_runs(tmp_path)).data["sections"]
    assert [chart["title"] for chart in sections["Goodput"]] == [
        f"perf/goodput/learner/{part}" for part in ("training", "waiting_for_groups", "syncing", "validating", "other")
    ]
    assert all(len(chart["series"]) == 2 for charts in sections.values() for chart in charts)


def test_runs_without_a_configuration_are_not_grouped(tmp_path: Path) -> None:
    runs = [written(tmp_path / folder / "same", [row(1, 0.5)]) for folder in "ab"]
    for directory in runs:
        (directory / "config.yaml").unlink()
    assert [group["name"] for group in report(*runs).data["groups"]] == ["same", "same (2)"]


def test_a_failed_and_an_empty_run_are_listed_beside_others(tmp_path: Path) -> None:
    failure = {"status": "failed", "reason": "no space left", "step": 0, "resumed_from": 0, "seconds": 1.0}
    failed = written(tmp_path / "failed", [], lr=1.0, starts=[{"end": failure}])
    page = report(*three_runs(tmp_path), failed)
    assert "no space left" in page.said
    assert "failed: the run has no row" in page.said
    assert len(page.data["groups"]) == 3


def test_the_page_of_several_runs_is_in_the_working_directory(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    runs = [str(directory) for directory in three_runs(Path("runs"))]
    assert main(["report", *runs, runs[0]]) == 0
    assert capsys.readouterr().out == "report.html\n"
    assert "slow-1" in Path("report.html").read_text()


class TestCurve:
    def test_seeds_with_different_steps_and_nan_are_averaged_over_those_that_have_a_value(self) -> None:
        curve = curve_of([column({1: 1.0, 2: math.nan, 3: 5.0}), column({2: 2.0, 3: 3.0})])
        assert curve.steps.tolist() == [1, 2, 3]
        assert curve.values.tolist() == [1.0, 2.0, 4.0]
        assert curve.nonfinite == [(2, 2)]

    def test_values_near_the_largest_float_stay_finite(self) -> None:
        curve = curve_of([column({1: 1.7e308}), column({1: 1.7e308})])
        assert np.isfinite(curve.values).all()

    def test_columns_without_a_finite_value_have_no_point(self) -> None:
        curve = curve_of([column({1: math.nan}), column({2: math.inf})])
        assert not len(curve.steps)
        assert curve.nonfinite == [(1, 2)]

    def test_many_ranges_of_nan_are_joined(self) -> None:
        curve = curve_of([column({step: math.nan if step % 2 else 1.0 for step in range(1, 1001)})])
        assert len(curve.nonfinite) == 200
        assert curve.nonfinite[-1][1] == 999

    def test_a_thinned_curve_keeps_its_extremes_and_ends(self) -> None:
        curve = curve_of([column({step: float(step == 777) for step in range(1, 1001)})]).thinned(10)
        assert (curve.steps[0], curve.steps[-1], len(curve.steps), curve.rows) == (1, 1000, 10, 100)
        assert curve.high is not None
        assert curve.high.tolist() == [0, 0, 0, 0, 0, 0, 0, 1, 0, 0]
        assert curve.values[7] == 0.01
