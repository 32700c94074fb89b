"""The run directory: an earlier run is kept, and a failure leaves nothing behind."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from hooktrainer.errors import ConfigError
from hooktrainer.rundir import make_run_directory


def test_it_holds_the_files(tmp_path: Path) -> None:
    make_run_directory(tmp_path / "runs" / "a", {"plan.txt": "plan"})

    assert (tmp_path / "runs" / "a" / "plan.txt").read_text() == "plan"
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["a"]


def test_earlier_runs_are_kept_under_the_next_free_number_and_that_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "hooktrainer"):
        for number in range(3):
            make_run_directory(tmp_path / "a", {"plan.txt": str(number)})

    texts = {path.name: (path / "plan.txt").read_text() for path in tmp_path.iterdir()}
    assert texts == {"a": "2", "a.1": "0", "a.2": "1"}
    assert [record.getMessage().rpartition("kept as ")[2] for record in caplog.records] == ["a.1", "a.2"]


def test_a_place_that_cannot_be_written_is_a_fault_of_the_configuration_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(ConfigError, match=r"run: the run directory .* cannot be made: File exists"):
        make_run_directory(tmp_path / "file" / "a", {"plan.txt": ""})

    (tmp_path / "b").mkdir()
    with pytest.raises(ConfigError, match="cannot be made"):
        make_run_directory(tmp_path / "a", {"good.txt": "", "no/such/folder.txt": ""})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b", "file"]
