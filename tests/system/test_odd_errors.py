"""Errors that are hard to show end a run like any other error."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from helpers import faulty_errors
from helpers.faulty_errors import ERRORS
from helpers.subprocess_runs import CONFIG, FIT, PROCESSES, SubprocessRun, config
from hooktrainer.cli import main
from hooktrainer.errors import add_error_note, first_error, line_of, message_of, notes_of, traceback_of


@pytest.fixture(autouse=True)
def in_a_new_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("error", ERRORS)
def test_a_handler_that_raises_an_odd_error_fails_the_run(
    error: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plugin = f"{{use: '{faulty_errors.__name__}:RaisesOdd', error: {error}}}"
    text = CONFIG.replace("use: thread", "use: inline")
    names = ["metric_aggregation", "weight_sync", "helpers.faulty_plugins:Faulty", plugin]
    (tmp_path / "run.yaml").write_text(text + "plugins:\n" + "".join(f"  - {name}\n" for name in names))

    assert main(["fit", "run.yaml"]) == 1

    (end,) = Path("ends").read_text().splitlines()
    err = capsys.readouterr().err
    kind = type(faulty_errors.make(error)).__name__
    assert kind in end
    assert kind in err
    assert len(err) < 100_000
    assert len(end) < 100_000


@pytest.mark.slow
@pytest.mark.parametrize("error", ["NoText", "OwnBase", "base_group"])
def test_the_workers_of_a_run_with_an_odd_error_are_closed(error: str, tmp_path: Path) -> None:
    plugin = f"{{use: 'faulty_errors:RaisesOdd', error: {error}}}"
    (tmp_path / "run.yaml").write_text(config(text=PROCESSES, plugins=[plugin]))
    run = SubprocessRun(tmp_path, *FIT, "run.yaml")

    assert run.ended() == 1
    assert len(run.ends) == 1
    assert "left running" not in run.err
    assert run.left() == []


@pytest.mark.parametrize("command", ["plan", "fit", "simulate"])
@pytest.mark.parametrize("error", ["NoText", "OddNotes", "TextIsNumber", "OwnBase", "base_group", "exit_object"])
def test_a_plugin_whose_import_raises_an_odd_error_is_a_fault(
    error: str, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Path(faulty_errors.__file__).read_text()
    (tmp_path / "odd.py").write_text(source)
    (tmp_path / "run.yaml").write_text(CONFIG + "plugins: [metric_aggregation, weight_sync, 'odd.py:RaisesOdd']\n")
    monkeypatch.setenv("RAISE_AT_IMPORT", error)

    assert main([command, "run.yaml"]) == 2

    err = capsys.readouterr().err
    assert type(faulty_errors.make(error)).__name__ in err
    assert "Traceback" not in err


@pytest.mark.parametrize("error", ERRORS)
def test_every_error_can_be_shown_and_noted(error: str) -> None:
    made, another = faulty_errors.make(error), ValueError("another")
    add_error_note(another, made, "later")
    add_error_note(made, another, "later")
    first_error([another, made], "at once")

    with suppress(RuntimeError, TypeError):  # its own method may raise
        made.add_note("by its own method")

    assert type(made).__name__ in line_of(made)
    assert line_of(message_of(made)).startswith("str: ")
    assert type(made).__name__ in traceback_of(made)
    assert len(message_of(made)) < 100_000
    assert "later" in notes_of(another)[0]
