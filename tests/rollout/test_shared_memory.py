"""Shared memory for the weights: a system that has too little of it ends the run with one sentence."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.subprocess_runs import FIT, PROCESSES, config

TOO_LITTLE = (
    r"the run failed: 2 copies of the weights need \S+ kB of shared memory, but /dev/shm has (\S+ \S+) free \({}\)"
)
LIMITED = (
    "import resource, runpy, sys\n"
    "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
    "sys.argv = ['hooktrainer', 'fit', 'run.yaml']\n"
    "runpy.run_module('hooktrainer', run_name='__main__')\n"
)
UNSHARE = ("unshare", "--map-root-user", "--mount", "sh", "-c")


def fit(directory: Path, *command: str) -> subprocess.CompletedProcess[str]:
    (directory / "run.yaml").write_text(config(text=PROCESSES).replace("faulty_plugins:Faulty", "staleness"))
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)


def check(ended: subprocess.CompletedProcess[str], directory: Path, reason: str) -> str:
    """Check the message and that nothing was made; return the free memory that it names."""
    assert ended.returncode == 1, ended.stderr
    assert "Traceback" not in ended.stderr
    found = re.search(TOO_LITTLE.format(reason), ended.stderr)
    assert found, ended.stderr
    assert "--shm-size" in ended.stderr
    assert "`rollout: {use: thread}`" in ended.stderr
    assert [path.name for path in directory.iterdir()] == ["run.yaml"]
    return found.group(1)


@pytest.mark.parametrize("kilobytes", [4, 20])  # too little for one copy, and enough for one of two
@pytest.mark.skipif(shutil.which("unshare") is None, reason="util-linux is not installed")
@pytest.mark.slow
def test_too_small_a_shared_memory_is_named_with_the_size_that_is_needed(kilobytes: int, tmp_path: Path) -> None:
    if subprocess.run([*UNSHARE, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this system allows no mount namespaces")
    mounted = f'mount -t tmpfs -o size={kilobytes}k none /dev/shm && exec "$0" "$@"'
    ended = fit(tmp_path, *UNSHARE, mounted, *FIT, "run.yaml")

    assert check(ended, tmp_path, "No space left on device .28.") == f"{kilobytes * 1.024:.4g} kB"


@pytest.mark.slow
def test_shared_memory_that_the_system_refuses_in_a_limit_is_named_with_its_reason(tmp_path: Path) -> None:
    before = set(Path("/dev/shm").iterdir())
    ended = fit(tmp_path, sys.executable, "-c", f"import os; print(os.getpid(), flush=True)\n{LIMITED}")
    check(ended, tmp_path, "File too large .27.")

    pid = ended.stdout.split()[0]
    assert [path for path in set(Path("/dev/shm").iterdir()) - before if f"torch_{pid}_" in path.name] == []
