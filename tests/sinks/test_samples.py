"""The file of samples: its lines over errors, kills and resumes, and how people see them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hooktrainer.errors import RecordError
from hooktrainer.sinks.samples import SampleFile

SAMPLE: dict[str, Any] = {
    "kind": "trained",
    "chosen": ["best", "longest"],
    "score": 0.5,
    "metrics": {"format": 1.0, "style": None},
    "length": 4,
    "truncated": True,
    "versions": [2, 3],
    "prompt": "2*3=",
    "answer": "c2*3\n6\n6",
}


def steps(directory: Path) -> list[int]:
    return [json.loads(line)["step"] for line in (directory / "samples.jsonl").read_text().splitlines()]


def written(directory: Path, *at: int) -> SampleFile:
    log = SampleFile(directory)
    log.open()
    for step in at:
        log.write(step, [SAMPLE, SAMPLE])
    return log


def test_lines_of_a_step_are_written_once_and_kept_by_a_later_process(tmp_path: Path) -> None:
    written(tmp_path, 1, 2, 2)
    written(tmp_path, 3)

    assert steps(tmp_path) == [1, 1, 2, 2, 3, 3]


def test_rewind_removes_the_lines_after_a_step_and_a_torn_one(tmp_path: Path) -> None:
    log = written(tmp_path, 1, 2, 3)
    with log.path.open("a") as file:
        file.write('{"step": 2, "pro')
    written(tmp_path).rewind(2)

    assert steps(tmp_path) == [1, 1, 2, 2]
    assert [path.name for path in tmp_path.iterdir()] == ["samples.jsonl"]


def test_rewind_without_a_file_does_nothing(tmp_path: Path) -> None:
    SampleFile(tmp_path).rewind(1)
    assert not [*tmp_path.iterdir()]


def test_unreadable_lines_are_kept_in_a_copy(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = written(tmp_path, 1)
    with log.path.open("a") as file:
        file.write("a note\n")
    before = log.path.read_bytes()
    log.rewind(1)

    assert steps(tmp_path) == [1, 1]
    assert (tmp_path / "samples.jsonl.set_aside").read_bytes() == before
    assert "line 3" in caplog.text


def test_a_run_without_a_directory_writes_nothing() -> None:
    log = written(None, 1)
    log.rewind(0)
    assert log.path is None


def test_a_path_that_is_a_directory_is_refused_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "samples.jsonl").mkdir()
    with pytest.raises(RecordError, match=r"samples cannot be written to .*samples\.jsonl: .*Move or remove"):
        SampleFile(tmp_path).open()


def test_a_step_that_failed_is_written_by_a_repeated_call(tmp_path: Path) -> None:
    log = written(tmp_path, 1)
    log.path.rename(tmp_path / "other")
    log.path.mkdir()
    with pytest.raises(RecordError, match="samples cannot be written"):
        log.write(2, [SAMPLE])
    log.path.rmdir()
    log.write(2, [SAMPLE])

    assert steps(tmp_path) == [2]


@pytest.mark.parametrize("text", ["line\nfeed", "\u2028\u2029\x85\x0b\x1c", "\ud83d", "日本語 🙂", '"\\'])
def test_any_text_is_one_line_of_strict_json(tmp_path: Path, text: str) -> None:
    log = written(tmp_path)
    log.write(1, [{**SAMPLE, "answer": text}])

    (line,) = log.path.read_text().splitlines()
    assert json.loads(line)["answer"] == text


def test_turns_are_shown_with_who_wrote_them(capsys: pytest.CaptureFixture[str]) -> None:
    turns = [{"from": "policy", "text": "c2*3"}, {"from": "environment", "text": "6\n+1"}]
    SampleFile(None).show(5, [{**SAMPLE, "turns": turns}])

    assert capsys.readouterr().out.splitlines() == [
        "sample of step 5, trained (best, longest): score 0.5, format 1, 4 tokens (cut off), versions 2-3",
        "  prompt       2*3=",
        "  policy       c2*3",
        "  environment  6",
        "               +1",
    ]


def test_a_terminal_is_safe_from_an_answer(capsys: pytest.CaptureFixture[str]) -> None:
    SampleFile(None).show(1, [{**SAMPLE, "score": None, "versions": [], "answer": "\x1b[2J\r" + "x" * 1000}])
    shown = capsys.readouterr().out

    assert "\\x1b[2J\\r" in shown
    assert "\x1b" not in shown
    assert "score NaN" in shown
    assert "... 605 characters ..." in shown
