"""File systems that are full, read-only or lack a call: a run continues with a warning, or ends with one sentence."""

from __future__ import annotations

import errno
import fcntl
import itertools
import json
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hooktrainer._util import files
from hooktrainer.cli import main

SMALL = """
task: {use: sort_digits, digits: 3}
model: {use: decoder, layers: 1, width: 16, heads: 2}
rollout: {use: inline, n: 2, max_response_length: 4}
trainer: {total_steps: 2, train_batch_size: 4, ppo_mini_batch_size: 4}
plugins:
  - metric_aggregation
  - weight_sync
  - {use: log_after_collect, sinks: [jsonl]}
  - {use: checkpoint, every: 1}
"""
RESUME = ["fit", "run.yaml", "run.resume=auto"]


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text(SMALL)
    files._warned.clear()
    return tmp_path


def fails(number: int, applies: Callable[..., bool] = lambda *_: True) -> Callable[..., Any]:
    def make(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if applies(*arguments):
                raise OSError(number, os.strerror(number))
            return real(*arguments, **options)

        return call

    return make


def is_directory(file: int) -> bool:
    return Path(f"/proc/self/fd/{file}").is_dir()


LACKING = {
    "flock": (fcntl, "flock", lambda *_: True, "two runs in this directory cannot be told apart"),
    "fsync of a directory": (os, "fsync", is_directory, "files cannot be synced on this file system"),
    "fsync": (os, "fsync", lambda *_: True, "files cannot be synced on this file system"),
    "rename over a file": (
        os, "replace", lambda _, target: Path(target).exists(), "a file cannot be replaced at once",
    ),
    "chmod": (os, "chmod", lambda *_: True, ""),
}  # fmt: skip


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL], ids=errno.errorcode.get)
@pytest.mark.parametrize("call", LACKING)
def test_a_run_continues_without_a_call_that_the_file_system_lacks(
    call: str, number: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if number == errno.ENOLCK and call != "flock":
        pytest.skip("only locks raise it")
    module, name, applies, warning = LACKING[call]
    monkeypatch.setattr(module, name, fails(number, applies)(getattr(module, name)))

    assert main(["fit", "run.yaml"]) == 0
    assert main([*RESUME, "trainer.total_steps=3"]) == 0

    assert steps() == [1, 2, 3]
    assert sorted(path.name for path in Path("runs/run/checkpoints").iterdir())[-1] == "step_00000003"
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert sum(warning in message for message in said) >= 1
    assert "(None)" not in " ".join(said)
    assert [path.name for path in Path("runs").iterdir()] == ["run"]


def steps() -> list[int]:
    return [json.loads(line)["step"] for line in Path("runs/run/metrics.jsonl").read_text().splitlines()]


def remains() -> list[str]:
    return [str(path) for path in Path("runs").rglob("*") if path.name.endswith((".new", ".unfinished"))]


@contextmanager
def small_disk(at: Path, megabytes: int) -> Iterator[None]:
    at.mkdir(parents=True)
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "none", at], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip("mounting a small disk needs root")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", at], check=True)


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        for size in (2**16, 2**10, 1):
            while True:
                try:
                    file.write(b"x" * size)
                except OSError:
                    break


@pytest.mark.parametrize("place", ["runs", "runs/run"])
def test_a_resume_on_a_full_disk_is_one_sentence_and_leaves_nothing(
    place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with small_disk(tmp_path / place, 4):
        assert main([*RESUME, "trainer.total_steps=1"]) == 0
        before = Path("runs/run/config.yaml").read_text()
        fill(Path(place, "filler"))
        capsys.readouterr()

        assert main(RESUME) == 1

        err = capsys.readouterr().err
        assert "Traceback" not in err
        assert "No space left on device" in err
        assert len([line for line in err.splitlines() if "the run failed" in line]) == 1
        assert remains() == []
        assert Path("runs/run/config.yaml").read_text() == before
        Path(place, "filler").unlink()
        assert main(RESUME) == 0
        assert steps() == [1, 2]


OPERATIONS = ("open", "write", "fsync", "rename", "replace", "mkdir", "unlink", "truncate", "listdir", "scandir")


NUMBERS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EIO)


class Faults:
    """Raises an error at the n-th operation on files below `runs`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, number: int, at: int) -> None:
        self.left = at
        self._number = number
        self._runs = str(Path("runs").absolute())
        for name in OPERATIONS:
            monkeypatch.setattr(os, name, self._wrapped(getattr(os, name)))
        monkeypatch.setattr("io.open", self._wrapped(open))

    def _wrapped(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if self._is_ours(arguments[0]) and self.left > 0:
                self.left -= 1
                if self.left == 0:
                    raise OSError(self._number, os.strerror(self._number), str(arguments[0]))
            return real(*arguments, **options)

        return call

    def _is_ours(self, target: object) -> bool:
        if isinstance(target, int):
            try:
                target = str(Path(f"/proc/self/fd/{target}").readlink())
            except OSError:
                return False
        return isinstance(target, str | os.PathLike) and str(Path(target).absolute()).startswith(self._runs)


@pytest.mark.slow
@pytest.mark.parametrize("offset", [0, 2])
@pytest.mark.parametrize("first", ["nothing", "a run"])
def test_an_error_at_any_file_operation_is_one_sentence_and_loses_nothing(
    first: str, offset: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if first == "a run":
        assert main([*RESUME, "trainer.total_steps=1"]) == 0
        shutil.copytree("runs", "kept")
    for at in itertools.count(1):
        shutil.rmtree("runs", ignore_errors=True)
        if first == "a run":
            shutil.copytree("kept", "runs")
        capsys.readouterr()
        with pytest.MonkeyPatch.context() as patched:
            faults = Faults(patched, NUMBERS[(at + offset) % len(NUMBERS)], at)
            code = main(RESUME)
        err = capsys.readouterr().err
        assert code in (0, 1, 2), at
        assert "Traceback" not in err, (at, err)
        assert remains() == [], (at, err)
        assert main(RESUME) == 0, at
        assert steps() == [1, 2], at
        if faults.left:
            break
    assert at > 20


@pytest.mark.parametrize(("first", "code"), [("nothing", 2), ("a run", 1)])
@pytest.mark.slow
def test_a_process_on_a_full_disk_ends_with_one_sentence(first: str, code: int, tmp_path: Path) -> None:
    """The directory of a new run can be another one, so it is a wrong configuration."""
    with small_disk(tmp_path / "runs", 4):
        if first == "a run":
            assert main([*RESUME, "trainer.total_steps=1"]) == 0
        fill(Path("runs/filler"))
        command = [sys.executable, "-m", "hooktrainer", *RESUME]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert "No space left on device" in done.stderr
    assert "(None)" not in done.stderr
    assert "Traceback" not in done.stderr
