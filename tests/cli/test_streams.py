"""Commands whose standard streams are closed, full or without a reader."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.subprocess_runs import CONFIG

PLUGINS = "plugins: [metric_aggregation, weight_sync, {use: log_after_collect, sinks: [console, jsonl]}]\n"
SMALL = CONFIG.replace("total_steps: 100000", "total_steps: 2")
COMMANDS = {
    "fit": "fit run.yaml",
    "fit with processes": "fit run.yaml rollout.use=process rollout.workers=1",
    "plan": "plan run.yaml",
    "plugins": "plugins",
    "simulate": "simulate run.yaml --steps 5",
    "--help": "--help",
    "--version": "--version",
    "fit --help": "fit --help",
}
SLOW = ("fit", "fit with processes", "simulate")


def shell(folder: Path, command: str, redirect: str) -> subprocess.CompletedProcess[str]:
    (folder / "run.yaml").write_text(SMALL + PLUGINS)
    (folder / "bad.yaml").write_text("plugins: [nothing]\n")
    line = f"{sys.executable} -m hooktrainer {command} {redirect}"
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return subprocess.run(
        ["bash", "-c", line], cwd=folder, env=env, capture_output=True, text=True, timeout=120, check=False
    )


def steps(folder: Path) -> int:
    return len((folder / "runs/run/metrics.jsonl").read_text().splitlines())


@pytest.mark.parametrize("redirect", [">&-", ">&- 2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize(
    "command", [pytest.param(name, marks=pytest.mark.slow if name in SLOW else []) for name in COMMANDS]
)
def test_a_command_with_closed_streams_does_its_work(command: str, redirect: str, tmp_path: Path) -> None:
    done = shell(tmp_path, COMMANDS[command], redirect)

    assert done.returncode == 0, done.stderr
    assert "Error" not in done.stderr
    if command.startswith("fit "):
        assert command == "fit --help" or steps(tmp_path) == 2


@pytest.mark.slow
def test_commands_that_read_a_run_do_their_work_with_closed_streams(tmp_path: Path) -> None:
    plugins = "[metric_aggregation, weight_sync, {use: validation, size: 4}, export]"
    assert shell(tmp_path, f"fit run.yaml 'plugins={plugins}'", "").returncode == 0

    config = "runs/run/config.yaml"
    for command in ("status runs/run", f"evaluate runs/run {config}", f"generate runs/run --task {config}"):
        for redirect in (">&-", ">&- 2>&-", "<&- >&- 2>&-"):
            done = shell(tmp_path, command, redirect)
            assert (command, redirect, done.returncode, done.stderr) == (command, redirect, 0, "")


@pytest.mark.slow
@pytest.mark.parametrize("redirect", [">/dev/full", ">/dev/full 2>/dev/full", "| true; exit ${PIPESTATUS[0]}"])
def test_a_run_whose_output_cannot_be_written_trains(redirect: str, tmp_path: Path) -> None:
    done = shell(tmp_path, COMMANDS["fit"], redirect)

    assert done.returncode == 0, done.stderr
    assert steps(tmp_path) == 2
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", ["plan", "plugins", "plugins weight_sync"])
def test_a_result_that_cannot_be_written_is_an_error(command: str, tmp_path: Path) -> None:
    done = shell(tmp_path, COMMANDS.get(command, command), ">/dev/full")

    assert done.returncode == 1
    assert done.stderr == "standard output cannot be written (No space left on device)\n"


@pytest.mark.parametrize("command", ["plan bad.yaml", pytest.param("fit bad.yaml", marks=pytest.mark.slow), "nothing"])
@pytest.mark.parametrize("redirect", ["2>&-", ">&- 2>&-", "2>/dev/full", "<&- >&- 2>&-"])
def test_a_wrong_configuration_or_command_has_its_exit_code_on_any_stream(
    command: str, redirect: str, tmp_path: Path
) -> None:
    assert shell(tmp_path, command, redirect).returncode == 2


def test_help_that_cannot_be_written_is_no_traceback(tmp_path: Path) -> None:
    assert "Traceback" not in shell(tmp_path, "--help", ">/dev/full").stderr


def test_a_file_never_receives_the_text_of_a_closed_stream(tmp_path: Path) -> None:
    (tmp_path / "chatty.py").write_text(
        "import os\nfile = open('mine.txt', 'w')\nprint('to standard output', flush=True)\n"
        "os.system('echo from a child')\nimport attrs\nfrom hooktrainer import Plugin\n"
        "@attrs.define\nclass Chatty(Plugin): ...\n"
    )
    done = shell(tmp_path, "plugins chatty.py:Chatty", ">&- 2>&-")

    assert done.returncode == 0
    assert (tmp_path / "mine.txt").read_text() == ""


def test_a_child_never_reads_a_file_of_the_run_as_its_closed_standard_input(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("secret")
    (tmp_path / "reads.py").write_text(
        "import os\nfile = open('mine.txt')\nos.set_inheritable(file.fileno(), True)\nos.system('cat > copy.txt')\n"
        "import attrs\nfrom hooktrainer import Plugin\n@attrs.define\nclass Reads(Plugin): ...\n"
    )
    done = shell(tmp_path, "plugins reads.py:Reads", "<&-")

    assert done.returncode == 0
    assert (tmp_path / "copy.txt").read_text() == ""
