"""Long texts of user code are shortened wherever they appear: on the console, in errors, and in events."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.config_yaml import BASE, written
from hooktrainer.cli import main
from hooktrainer.errors import line_of, traceback_of

CODE = """
import attrs
from pathlib import Path
from hooktrainer import Plugin, on
from hooktrainer.events import FitEnd, StepEnd
from hooktrainer.tasks.sort_digits import SortDigits


class NoText:
    def __str__(self):
        raise ValueError("no text")


@attrs.define(kw_only=True)
class Stops(Plugin):
    kind: str = "long"

    @on(StepEnd)
    def stop(self, event):
        texts = {"long": "x" * 1_000_000, "words": "no progress " * 100_000, "object": NoText(), "none": None}
        event.control.stop(texts[self.kind])

    @on(FitEnd)
    def end(self, event):
        Path("reason").write_text(str(event.reason))


@attrs.frozen(kw_only=True)
class Scores(SortDigits):
    def grade(self, truth, answer):
        raise ValueError("x" * 20_000)


@attrs.frozen(kw_only=True)
class Returns(SortDigits):
    def grade(self, truth, answer):
        return "x" * 1_000_000


@attrs.frozen(kw_only=True)
class Trains(SortDigits):
    def train(self, seed):
        raise ValueError("x" * 1_000_000)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(CODE)


@pytest.mark.parametrize("kind", ["long", "words", "object", "none"])
def test_the_reason_of_a_stop_is_shortened(tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    plugin = f"{{use: 'mine.py:Stops', kind: {kind}}}"
    path = written(tmp_path, BASE + f"plugins: [metric_aggregation, weight_sync, {plugin}]\n")
    assert main(["fit", str(path)]) == 0
    out, err = capsys.readouterr()
    line = out.splitlines()[-1]
    start = {"long": "xxx", "words": "no progress no", "object": "(the __str__ of NoText", "none": "None"}[kind]
    assert line.startswith(f"stopped ({start}")
    assert len(line) < 800
    assert err == ""
    reason = Path("reason").read_text()
    assert reason in line
    assert kind not in {"long", "words"} or " characters ... " in reason


@pytest.mark.parametrize("limit", [0, 2])
def test_the_text_of_an_error_of_score_is_shortened(
    tmp_path: Path, limit: int, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    path = written(tmp_path, BASE + "plugins: [metric_aggregation, weight_sync]\n")
    assert main(["fit", str(path), "task.use=mine.py:Scores", f"replay.max_failed_groups={limit}"]) == 1
    err = capsys.readouterr().err
    assert "ValueError: xxx" in err
    assert max(map(len, err.splitlines())) < 800
    assert len(caplog.records) == limit
    assert all(len(record.getMessage()) < 1000 for record in caplog.records)


@pytest.mark.parametrize(
    ("task", "code", "text"), [("Returns", 1, "Returns.score returned 'xxx"), ("Trains", 2, "ValueError: xxx")]
)
def test_a_long_result_or_error_of_a_task_is_shortened(
    tmp_path: Path, task: str, code: int, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, BASE + "plugins: [metric_aggregation, weight_sync]\n")
    assert main(["fit", str(path), f"task.use=mine.py:{task}"]) == code
    err = capsys.readouterr().err
    assert text in err
    assert max(map(len, err.splitlines())) < 4500
    if task == "Returns":
        assert "expected a finite number" in err


def test_texts_of_errors_are_shortened_in_lines_and_tracebacks() -> None:
    error = ValueError("x" * 20_000)
    error.add_note("y" * 20_000)
    assert len(line_of(error)) < 800
    try:
        raise error
    except ValueError as raised:
        raised.__cause__ = KeyError("z" * 20_000)
        text = traceback_of(raised)
    assert max(map(len, text.splitlines())) < 800
    for start in ("ValueError: xxx", "yyy", "KeyError: 'zzz"):
        assert start in text
