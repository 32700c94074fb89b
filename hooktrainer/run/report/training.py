"""Train variants with several seeds, each run in a process of its own."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, CancelledError, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, Final

import attrs

from hooktrainer.errors import RunError
from hooktrainer.run.history import RunHistory
from hooktrainer.run.report.groups import Group
from hooktrainer.run.report.studies import Variant

FILE: Final = "compare.json"
"""File of a run directory with the command of a complete run, and the CPU time that it took."""


@attrs.frozen
class Training:
    """Trains the runs of a comparison in one directory."""

    directory: Path
    report: Callable[[Variant, int, RunHistory], None]
    """Called after each run."""
    _ended: threading.Event = attrs.field(factory=threading.Event, init=False, repr=False)

    def train_all(self, variants: Sequence[Variant], seeds: Sequence[int], jobs: int) -> list[Group]:
        """Return the runs of each variant. After a failure or Ctrl-C, no further run is started.

        Raises `RunError` if a run fails.
        """
        with ThreadPoolExecutor(jobs) as pool:
            pending = [[pool.submit(self._one, variant, seed) for seed in seeds] for variant in variants]
            every = [future for futures in pending for future in futures]
            try:
                wait(every, return_when=FIRST_EXCEPTION)
            finally:  # wait for the runs in progress
                self._ended.set()
                pool.shutdown(cancel_futures=True)
        for error in [future.exception() for future in every if not future.cancelled()]:
            if error is not None and not isinstance(error, CancelledError):
                raise error
        found = [[future.result() for future in futures] for futures in pending]
        return [Group(variant.name, runs) for variant, runs in zip(variants, found, strict=True)]

    def _one(self, variant: Variant, seed: int) -> RunHistory:
        if self._ended.is_set():
            raise CancelledError
        try:
            return self._trained(variant, seed)
        except BaseException:
            self._ended.set()
            raise

    def _trained(self, variant: Variant, seed: int) -> RunHistory:
        """Return the run of one seed; train it unless it is complete, with this command and these files."""
        name = f"{variant.folder}-{seed}"
        place = [f"seed={seed}", f"run.dir={self.directory}", f"run.name={name}"]
        command = [*map(str, variant.configs), *variant.overrides, *place]
        made_by = {"fit": command, "configs": [_hash(path) for path in variant.configs]}
        directory = self.directory / name
        if {key: value for key, value in _recorded(directory).items() if key in made_by} != made_by:
            code, said, cpu_seconds = finished([sys.executable, "-m", "hooktrainer", "fit", *command])
            if code:
                raise RunError(f"{variant.name}, seed {seed}: exit {code}\n{said.strip()}")
            text = json.dumps({**made_by, "cpu_seconds": cpu_seconds}, indent=2)
            (directory / FILE).write_text(f"{text}\n", encoding="utf-8")
        run = RunHistory.read(directory)
        self.report(variant, seed, run)
        return run


def cpu_seconds_of(run: RunHistory) -> float | None:
    """Return the CPU time of a run and its processes, which depends less on the load of the machine than elapsed time.

    None if the run was not made by a comparison.
    """
    seconds = _recorded(run.directory).get("cpu_seconds")
    return float(seconds) if isinstance(seconds, (int, float)) else None


def finished(command: Sequence[str]) -> tuple[int, str, float]:
    """Run a command; return its exit code, its standard error, and its CPU seconds, including child processes."""
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors:
        child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors)  # noqa: S603 (our own command)
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        errors.seek(0)
        return child.returncode, errors.read(), used.ru_utime + used.ru_stime


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else ""


def _recorded(directory: Path) -> dict[str, Any]:
    try:
        found = json.loads((directory / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):  # the run is not complete, or was not made by a comparison
        return {}
    return found if isinstance(found, dict) else {}
