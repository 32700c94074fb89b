"""Process workers import the main module again; one that they cannot import is refused before a process is started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.subprocess_runs import FAULTY_PLUGINS, PROCESSES, config

SCRIPT = """
import sys
from hooktrainer import build_trainer, load_config

if __name__ == "__main__":
    build_trainer(load_config("run.yaml")).fit()
    print("ended")
"""
OWN_TASK = """
from helpers.rollouts import generator_config
from hooktrainer.rollout.process.engine import ProcessOptions
from hooktrainer.tasks.addition import Addition

class Own(Addition): pass

ProcessOptions().build(generator_config(task=Own()))
"""


def run(directory: Path, *command: str, script: str = "") -> subprocess.CompletedProcess[str]:
    (directory / "run.yaml").write_text(config("run: {dir: runs}", text=PROCESSES).replace("100000", "2"))
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, FAULTY_PLUGINS.parents[:2]))}
    return subprocess.run(
        [sys.executable, *command], cwd=directory, input=script, capture_output=True, text=True, check=False, env=env
    )


def refused(ended: subprocess.CompletedProcess[str], cause: str) -> None:
    assert ended.returncode == 1
    assert f"worker processes import the main module again, but {cause}" in ended.stderr
    assert "`rollout: {use: thread}`" in ended.stderr
    assert "rollout worker" not in ended.stderr  # none was started


@pytest.mark.parametrize("argument", ["-", "/dev/stdin"])
@pytest.mark.slow
def test_a_script_from_standard_input_is_refused_before_a_worker_is_started(argument: str, tmp_path: Path) -> None:
    ended = run(tmp_path, argument, script=SCRIPT)

    refused(ended, "the script was read from standard input or a pipe, and has no file")
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_a_script_that_was_deleted_is_refused(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        SCRIPT.replace("    build", "    __import__('os').unlink('script.py')\n    build")
    )

    refused(run(tmp_path, "script.py"), "the script")


@pytest.mark.slow
def test_a_task_that_is_defined_in_a_command_is_refused(tmp_path: Path) -> None:
    ended = run(tmp_path, "-c", OWN_TASK)

    assert ended.returncode == 1
    assert "Own is defined in a main module without a file" in ended.stderr
    assert "rollout worker" not in ended.stderr


@pytest.mark.slow
def test_a_command_without_classes_of_its_own_runs(tmp_path: Path) -> None:
    ended = run(tmp_path, "-c", SCRIPT)

    assert (ended.returncode, ended.stdout.splitlines()[-1]) == (0, "ended"), ended.stderr


UNGUARDED = {
    "nothing": 'from hooktrainer import build_trainer, load_config\nbuild_trainer(load_config("run.yaml")).fit()\n',
    "an error": SCRIPT.replace("import sys", "import sys\nif __name__ != '__main__': raise OSError('no import')"),
    "an exit": SCRIPT.replace("import sys", "import sys\nif __name__ != '__main__': sys.exit(3)"),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("unguarded", "cause", "code"),
    [
        ("nothing", "a worker process is importing this script, which would start a run there too", 1),
        ("an error", "OSError: no import", 1),
        ("an exit", "", 3),
    ],
)
def test_a_script_that_workers_cannot_import_fails_at_the_first_worker(
    unguarded: str, cause: str, code: int, tmp_path: Path
) -> None:
    (tmp_path / "script.py").write_text(UNGUARDED[unguarded])
    ended = run(tmp_path, "script.py")

    assert ended.returncode == 1
    assert cause in ended.stderr
    assert f"returned early, with exit code {code} after 0 restarts. It never became ready" in ended.stderr
    assert "A script must call `fit` under `if __name__ == '__main__':`" in ended.stderr
    assert "is restarted" not in ended.stderr
    assert "another run is using" not in ended.stderr
