"""The run directory: an earlier run is kept, and a failure leaves nothing behind."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from hooktrainer.errors import ConfigError
from hooktrainer.run.directory import RunDirectory


def test_new_run_directory_has_the_given_files(tmp_path: Path) -> None:
    RunDirectory(tmp_path / "runs" / "a", {"plan.txt": "plan"}).release()

    assert (tmp_path / "runs" / "a" / "plan.txt").read_text() == "plan"
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["a"]


def test_earlier_run_is_renamed_to_the_next_free_number_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "hooktrainer"):
        for number in range(3):
            RunDirectory(tmp_path / "a", {"plan.txt": str(number)}).release()

    texts = {path.name: (path / "plan.txt").read_text() for path in tmp_path.iterdir()}
    assert texts == {"a": "2", "a.1": "0", "a.2": "1"}
    assert [record.getMessage().rpartition("renamed to ")[2] for record in caplog.records] == ["a.1", "a.2"]


def test_directory_that_cannot_be_created_is_a_config_error_and_leaves_no_files(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(ConfigError, match=r"run: the run directory .* cannot be created: File exists"):
        RunDirectory(tmp_path / "file" / "a", {"plan.txt": ""})

    (tmp_path / "b").mkdir()
    with pytest.raises(ConfigError, match="cannot be created"):
        RunDirectory(tmp_path / "a", {"good.txt": "", "no/such/folder.txt": ""})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b", "file"]


def test_failed_creation_keeps_the_earlier_run_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    RunDirectory(tmp_path / "a", {"plan.txt": "1"}).release()
    rename = Path.rename

    def fails(path: Path, target: Path) -> Path:
        if path.name == ".a.new":
            raise OSError(28, "No space left on device", str(path))
        return rename(path, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", fails)
        with pytest.raises(ConfigError, match="No space left on device"):
            RunDirectory(tmp_path / "a", {"plan.txt": "2"})

    assert {path.name: (path / "plan.txt").read_text() for path in tmp_path.iterdir()} == {"a": "1"}


def test_directory_of_an_active_run_is_refused(tmp_path: Path) -> None:
    first = RunDirectory(tmp_path / "a", {"plan.txt": "1"})

    with pytest.raises(ConfigError, match=r"run.name: another run is using .*/a. Wait for it"):
        RunDirectory(tmp_path / "a", {"plan.txt": "2"})
    RunDirectory(tmp_path / "b", {"plan.txt": "3"}).release()
    assert (tmp_path / "a" / "plan.txt").read_text() == "1"

    first.release()
    RunDirectory(tmp_path / "a", {"plan.txt": "4"}).release()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "a.1", "b"]


def test_symlink_to_an_active_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real" / "checkpoints" / "step_00000001").mkdir(parents=True)
    (tmp_path / "alias").symlink_to("real")
    first = RunDirectory(tmp_path / "real", {}, "auto")

    with pytest.raises(ConfigError, match=r"another run is using .*/alias"):
        RunDirectory(tmp_path / "alias", {}, "auto")
    first.release()


def test_killed_run_releases_its_directory(tmp_path: Path) -> None:
    script = (
        "import os, signal, sys\nfrom pathlib import Path\nfrom hooktrainer.run.directory import RunDirectory\n"
        f"kept = RunDirectory(Path({str(tmp_path)!r}) / 'a', {{}})\nos.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", script], check=False)

    RunDirectory(tmp_path / "a", {}).release()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "a.1"]


def test_resumed_run_keeps_its_directory_and_replaces_the_given_files(tmp_path: Path) -> None:
    run = tmp_path / "a"
    RunDirectory(run, {"plan.txt": "1"}).release()
    (run / "checkpoints" / "step_00000001").mkdir(parents=True)
    (run / "metrics.jsonl").write_text("row")

    for resume in ("auto", run, run / "checkpoints" / "step_00000001"):
        before = (run / "plan.txt").read_text()
        directory = RunDirectory(run, {"plan.txt": str(resume)}, resume)
        assert (run / "plan.txt").read_text() == before  # the files are replaced only once the run is known to resume
        directory.renew()
        directory.release()
        assert (run / "plan.txt").read_text() == str(resume)
        assert (run / "metrics.jsonl").read_text() == "row"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("resume", ["auto", Path("elsewhere")])
def test_run_that_is_not_resumed_is_renamed(tmp_path: Path, resume: object) -> None:
    RunDirectory(tmp_path / "a", {"plan.txt": "1"}).release()
    RunDirectory(tmp_path / "a", {"plan.txt": "2"}, resume).release()

    assert (tmp_path / "a.1" / "plan.txt").read_text() == "1"


def test_empty_directory_is_reused(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    RunDirectory(tmp_path / "a", {"plan.txt": "1"}, "auto").release()

    assert [path.name for path in tmp_path.iterdir()] == ["a"]
