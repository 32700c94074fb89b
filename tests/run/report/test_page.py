"""The report of one run: its values, its states, and text that could break out of the page."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import attrs
import pytest

from helpers.report_pages import Page, report
from helpers.run_directories import row, written
from hooktrainer.cli import main
from hooktrainer.run.record import Start

ROWS = [row(step, score) for step, score in enumerate((0.1, 0.4, 0.3), 1)]
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>&amp;\u2028'\"{{ 7919 * 7907 }}"


def test_values_of_a_run_are_on_its_page(tmp_path: Path) -> None:
    page = report(written(tmp_path / "quick", ROWS))

    assert "completed all 4 steps are done" in page.said
    assert "best training score 0.4 step 2" in page.said
    assert "last training score 0.3 first 0.1" in page.said
    assert "steps 3 of 4" in page.said
    assert "time 12.5 s 0.5 s per step" in page.said
    assert "goodput 75% of the time is training" in page.said
    assert "weight_sync 0.125 25.0 %" in page.said
    assert "600 REPORT log_after_collect.write <b>" in page.said
    assert "0123456789ab" in page.said
    score = page.curve("critic/score/mean")
    assert (score["steps"], score["y"]) == ([1, 2, 3], [0.1, 0.4, 0.3])
    staleness = page.curve("training/off_policy/staleness/mean")
    assert (staleness["low"], staleness["high"]) == ([1, 1, 1], [2, 2, 2])
    learner = next(chart for chart in page.data["sections"]["Goodput"] if chart["title"] == "Time of the learner")
    assert (learner["kind"], len(learner["series"])) == ("stack", 5)
    alone = [chart["title"] for chart in page.data["sections"]["All metrics"]]
    assert "actor/pg_loss" in alone
    assert "timing_s/group/0.1" not in alone
    figures = [attributes for tag, attributes in page.tags if tag == "figure"]
    assert len(figures) == sum(map(len, page.data["sections"].values()))


def test_validation_is_the_score_where_a_run_has_it(tmp_path: Path) -> None:
    rows = [*ROWS, row(4, 0.9, **{"val/score/mean": 0.25})]
    page = report(written(tmp_path / "quick", rows))
    assert "best held-out score 0.25 step 4" in page.said
    assert [chart["title"] for chart in page.data["sections"]["Score"]] == ["Score"]


def test_settings_that_are_not_the_default_are_listed(tmp_path: Path) -> None:
    said = report(written(tmp_path / "quick", ROWS)).said
    table = said[said.index("Settings that are not the default") : said.index("Plan: every handler")]
    assert "trainer.parameter_sync_step 4 1" in table
    assert "algorithm.entropy_coeff 0.1 0.0" in table
    assert "plugins.staleness.max_off_policy_threshold 2" in table
    assert "plugins.kl_stop.limit 0.2" in table
    assert "optim.lr 0.0005" in table
    for default in ("optim.beta1", "algorithm.gamma", "algorithm.adv_estimator", "run.name"):
        assert default not in table


def test_the_page_needs_no_network_and_admits_only_its_own_script(tmp_path: Path) -> None:
    page = report(written(tmp_path / "quick", ROWS))
    without_namespace = page.text.replace('"http://www.w3.org/2000/svg"', "")
    assert not re.search(r"https?://|//[a-z]+\.[a-z]|@import|url\(", without_namespace)
    assert not [tag for tag, attributes in page.tags if {"src", "href", "style", "onclick"} & attributes.keys()]
    policy = next(str(found["content"]) for _, found in page.tags if found.get("http-equiv"))
    own = r"style-src 'sha256-\S{44}'; script-src 'sha256-\S{44}'"
    assert re.fullmatch(rf"default-src 'none'; {own}; base-uri 'none'; form-action 'none'", policy)


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    plain = report(written(tmp_path / "plain", ROWS))
    directory = written(
        tmp_path / "<b>run & co",
        [{**one, HOSTILE: 1.0} for one in ROWS],
        starts=[{"end": {"status": "failed", "reason": HOSTILE, "step": 3, "resumed_from": 0, "seconds": 1.0}}],
    )
    sample = {"step": 3, "prompt": HOSTILE, "answer": HOSTILE, "scores": {HOSTILE: 1.0}, HOSTILE: [HOSTILE]}
    (directory / "samples.jsonl").write_text(json.dumps(sample, ensure_ascii=False) + "\n")
    (directory / "plan.txt").write_text(HOSTILE)
    (directory / "config.yaml").write_text(f"seed: 0\nx: {json.dumps(HOSTILE)}\n")

    page = report(directory)

    kinds = {tag for tag, _ in page.tags}
    assert kinds - {"article", "h4"} <= {tag for tag, _ in plain.tags}
    assert [tag for tag, _ in page.tags].count("script") == 2
    assert page.curve(HOSTILE)["y"] == [1, 1, 1]
    assert page.said.count("alert(1)") >= 8
    assert "62615533" not in page.said


def test_samples_are_shown_with_every_key(tmp_path: Path) -> None:
    directory = written(tmp_path / "quick", ROWS)
    samples = [
        {"step": 1, "prompt": "2+2", "answer": "5", "scores": {"exact": 0.0}},
        {
            "step": 2,
            "prompt": "2+2",
            "answer": "4",
            "scores": {"exact": 1.0},
            "versions": [0, 1],
            "length": 3,
            "why": "best",
        },
        {"answer": ["a", {"b": None}], "scores": 1},
    ]
    text = "".join(json.dumps(sample) + "\n" for sample in samples)
    (directory / "samples.jsonl").write_text(text + "[1]\nno\n" + '{"step": 3, "torn')

    said = report(directory).said

    assert "step 2 (1) prompt 2+2 answer 4 scores exact 1 versions 0, 1 length 3 why best step 1 (1)" in said
    assert 'step unknown (1) prompt answer ["a", {"b": null}] scores 1' in said
    assert "lines 4, 5 of samples.jsonl cannot be read" in said


def test_of_many_samples_some_are_shown_and_long_ones_are_cut(tmp_path: Path) -> None:
    directory = written(tmp_path / "quick", ROWS)
    with (directory / "samples.jsonl").open("w") as file:
        for step in range(1, 2001):
            file.write(json.dumps({"step": step, "prompt": "p", "answer": "x" * 100_000}) + "\n" if step < 60 else "")
            file.write(json.dumps({"step": step, "prompt": "p", "answer": f"answer {step}"}) + "\n")
    page = report(directory)
    assert "step 2000" in page.said
    assert "answer 1 " in page.said
    assert "… 97000 characters …" in page.said
    assert len(page.text) < 1_000_000


def test_rows_without_finite_values_break_the_curve(tmp_path: Path) -> None:
    rows = [row(step, 0.5, **{"actor/entropy": None if step in (3, 4, 7) else 1.0}) for step in range(1, 9)]
    for one in rows:
        one["actor/ppo_kl"] = math.nan
    page = report(written(tmp_path / "quick", rows))

    entropy, kl = page.curve("actor/entropy"), page.curve("actor/ppo_kl")
    assert (entropy["steps"], entropy["nonfinite"]) == ([1, 2, 5, 6, 8], [[3, 4], [7, 7]])
    assert (kl["y"], kl["nonfinite"]) == ([], [[1, 8]])
    assert "actor/entropy is NaN or infinite at steps 3-4, 7" in page.said
    assert "actor/ppo_kl is NaN or infinite at steps 1-8" in page.said


def test_damaged_and_repeated_rows_are_reported_and_the_last_one_counts(tmp_path: Path) -> None:
    rows = [row(1, 0.1), row(2, 0.2), row(5, 0.5), row(2, 0.75)]
    directory = written(tmp_path / "quick", rows, tail='nonsense\n{"step": 0}\n{"step": 6, "critic/sc')
    page = report(directory)
    score = page.curve("critic/score/mean")
    assert (score["steps"], score["y"]) == ([1, 2, 5], [0.1, 0.75, 0.5])
    assert "lines 5, 6 of metrics.jsonl cannot be read" in page.said
    assert "rows are missing: 3-4" in page.said


def test_losses_of_data_are_warnings(tmp_path: Path) -> None:
    rows = [row(k, 0.5, **{"replay/failed/timeout": k, "ledger/imbalance": 0.0, "nan/reward/tool": 1}) for k in (1, 2)]
    rows[1] |= {"ledger/imbalance": 3.0, "response_length/clip_ratio": 0.75, "replay/evicted_capacity": 4}
    said = report(written(tmp_path / "quick", rows)).said
    assert "groups failed: 2 (replay/failed/timeout)" in said
    assert "groups evicted, because the replay buffer was full: 4 (replay/evicted_capacity)" in said
    assert "ledger/imbalance is 3" in said
    assert "NaNs left out of reward/tool: 2" in said
    assert "75% of the answers of the last step were cut" in said


@pytest.mark.parametrize(
    ("starts", "state", "warning"),
    [
        ([{}], "completed", None),
        ([{"end": None}], "running", None),
        ([{"end": None, "process_started": 1}], "killed", "the process of the run is gone"),
        ([{"end": None, "host": "another"}], "unknown", "the run was started on another"),
        (
            [{"end": None, "process_started": 1}, {"resumed_from": 2}],
            "completed",
            "earlier starts of the run were killed: 1",
        ),
    ],
)
def test_every_state_has_a_page(tmp_path: Path, starts: list[dict[str, Any]], state: str, warning: str | None) -> None:
    page = report(written(tmp_path / "quick", ROWS, starts=starts))
    assert ("span", {"class": f"badge {state}"}) in page.tags
    assert (warning is None) == ("Warnings" not in page.said)
    assert warning is None or warning in page.said
    assert page.data["restarts"] == ([{"group": 0, "step": 2, "run": "quick"}] if len(starts) > 1 else [])


def test_a_run_without_a_row_says_so(tmp_path: Path) -> None:
    directory = written(tmp_path / "quick", [])
    (directory / "metrics.jsonl").unlink()
    page = report(directory)
    assert "the run has no row" in page.said
    assert page.data["sections"] == {}


def test_rows_alone_are_enough(tmp_path: Path) -> None:
    directory = written(tmp_path / "quick", ROWS)
    for name in ("run.json", "config.yaml", "plan.txt"):
        (directory / name).unlink()
    page = report(directory)
    assert "best training score 0.4" in page.said
    assert "there is no run.json" in page.said
    (directory / "run.json").write_text("[]")
    (directory / "config.yaml").write_text("seed: [")
    page = report(directory)
    assert "the record of the run cannot be read" in page.said
    assert "config.yaml cannot be read" in page.said


def test_many_rows_are_drawn_as_means_with_ranges(tmp_path: Path) -> None:
    rows = [{"step": step, "critic/score/mean": step % 10, "actor/pg_loss": 1.0} for step in range(1, 5001)]
    rows[3333]["actor/pg_loss"] = 50.0
    page = report(written(tmp_path / "long", rows))
    score, loss = page.curve("critic/score/mean"), page.curve("actor/pg_loss")
    assert len(score["y"]) == len(score["steps"]) == 500
    assert (score["rows"], set(score["y"]), set(score["low"]), set(score["high"])) == (10, {4.5}, {0}, {9})
    assert (score["steps"][0], score["steps"][-1]) == (1, 5000)
    assert max(loss["high"]) == 50
    assert "best training score 9 step 9" in page.said


class TestCommand:
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)

    def test_the_page_is_written_into_the_run(self, capsys: pytest.CaptureFixture[str]) -> None:
        written(Path("runs/quick"), ROWS)
        for arguments in (["runs/quick"], []):  # the second one replaces the first one
            assert main(["report", *arguments]) == 0
            assert capsys.readouterr().out == "runs/quick/report.html\n"
        assert "quick" in Page(Path("runs/quick/report.html").read_text()).said

    def test_another_file_is_chosen_and_opened(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        opened: list[str] = []
        monkeypatch.setattr("webbrowser.open", opened.append)
        written(Path("runs/quick"), ROWS)
        assert main(["report", "runs/quick", "--output", "new/page.html", "--open"]) == 0
        assert opened == [Path("new/page.html").absolute().as_uri()]
        assert "no browser was found; open" in capsys.readouterr().err

    def test_no_other_file_is_replaced(self, capsys: pytest.CaptureFixture[str]) -> None:
        directory = written(Path("runs/quick"), ROWS)
        before = (directory / "metrics.jsonl").read_bytes()
        assert main(["report", "--output", "runs/quick/metrics.jsonl"]) == 2
        assert "exists and is not a report" in capsys.readouterr().err
        assert (directory / "metrics.jsonl").read_bytes() == before

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ([], "there is no run in "),
            (["nope"], "there is no directory nope"),
            (["."], "has neither run.json nor metrics.jsonl"),
            (["some"], "so it is not the directory of a run; its runs are quick"),
            (["some/quick", "--output", "some"], "--output some is a directory"),
            (["some/quick", "--output", "some/quick/run.json/page.html"], "the report cannot be written to"),
        ],
    )
    def test_mistakes_are_named(self, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
        written(Path("some/quick"), ROWS)
        assert main(["report", *arguments]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium")
def test_a_browser_draws_every_chart(tmp_path: Path) -> None:
    rows = [row(step, 0.5, **{"actor/ppo_kl": None}) for step in range(1, 5)]
    text = report(written(tmp_path / "quick", rows)).text
    (tmp_path / "page.html").write_text(text.replace("<details><summary><h2>", "<details open><summary><h2>"))
    # The virtual time passes without a frame while the machine is busy, so it is given more.
    missing: list[str] = []
    for milliseconds in (4_000, 40_000, 400_000):
        shown = dumped(tmp_path, milliseconds)
        assert len(shown) == text.count("<figure")
        missing = [figure for figure in shown if "<path" not in figure and "no finite value" not in figure]
        if not missing:
            return
    raise AssertionError(missing)


def dumped(directory: Path, milliseconds: int) -> list[str]:
    """Return the figures of a page after some virtual time in a browser."""
    options = [
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--window-size=1000,8000",
        f"--virtual-time-budget={milliseconds}",
        f"--user-data-dir={directory / 'profile'}",
    ]
    command = ["chromium", *options, "--dump-dom", (directory / "page.html").as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout.split("<figure")[1:]


def test_a_start_of_an_older_record_has_no_resumed_step() -> None:
    fields = attrs.asdict(Start.now())
    del fields["resumed_from"]
    assert Start(**fields).resumed_from == 0
