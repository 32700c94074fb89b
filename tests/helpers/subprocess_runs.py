"""A run in a separate process, and the resources that it leaves behind."""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

FAULTY_PLUGINS = Path(__file__).with_name("faulty_plugins.py")
CONFIG = """
task: {use: sort_digits, digits: 3}
model: {use: decoder, layers: 1, width: 16, heads: 2}
rollout: {use: thread, n: 2, max_response_length: 4}
trainer: {total_steps: 100000, train_batch_size: 4, ppo_mini_batch_size: 2, parameter_sync_step: 2}
"""
PROCESSES = CONFIG.replace("use: thread", "use: process, workers: 2")
FIT = (sys.executable, "-u", "-m", "hooktrainer", "fit")
TORCHRUN = (sys.executable, "-u", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
FIT_ON_RANKS = (*TORCHRUN, "-m", "hooktrainer", "fit")


def config(*more: str, text: str = CONFIG, plugins: Sequence[str] = (), **faulty: object) -> str:
    """Return the YAML of a run with the faulty plugin."""
    names = ["metric_aggregation", "weight_sync", *plugins, json.dumps({"use": "faulty_plugins:Faulty", **faulty})]
    listed = "\n".join(f"  - {name}" for name in [*names, "{use: log_after_collect, sinks: [console, jsonl]}"])
    return "\n".join([text, *more, f"plugins:\n{listed}\n"])


class SubprocessRun:
    """A command that runs in a process of a new session."""

    def __init__(self, directory: Path, *command: str, **options: object) -> None:
        self.directory = directory
        self._temporary = directory / "tmp"
        self._temporary.mkdir(exist_ok=True)
        self._shared = _shared_memory()
        env = {
            **os.environ,
            "TMPDIR": str(self._temporary),
            "TORCHINDUCTOR_CACHE_DIR": str(directory / "torch"),  # torch would put this cache among temporary files
            "PYTHONPATH": os.pathsep.join(
                [str(FAULTY_PLUGINS.parent), str(FAULTY_PLUGINS.parents[1]), os.environ.get("PYTHONPATH", "")]
            ),
        }
        self.process = subprocess.Popen(
            command,
            cwd=directory,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            **options,
        )
        self._limit = threading.Timer(120, self.process.kill)  # a hanging run must not hang the test
        self._limit.daemon = True
        self._limit.start()
        atexit.register(self.process.kill)  # a failing test leaves no process
        self.out: list[str] = []
        self.err = ""

    def until(self, start: str, times: int = 1) -> None:
        """Wait for a line with this prefix."""
        for line in self.process.stdout:
            self.out.append(line.rstrip("\n"))
            times -= line.startswith(start)
            if not times:
                return
        raise AssertionError(f"no line began with {start!r}: {self.out}; {self.process.stderr.read()}")

    def send(self, number: signal.Signals) -> float:
        """Send a signal to the process; return the time."""
        self.process.send_signal(number)
        return time.monotonic()

    def wait_until_received(self, number: signal.Signals) -> None:
        """Wait until a signal that was sent is no longer pending."""
        bit = 1 << (number - 1)
        while any(pending & bit for pending in _pending(self.process.pid)):
            time.sleep(0.001)

    def send_all(self, number: signal.Signals) -> float:
        """Send a signal to all processes of the session, as a terminal does; return the time."""
        os.killpg(self.process.pid, number)
        return time.monotonic()

    def ended(self) -> int:
        """Wait for the process to exit; return its exit code."""
        out, self.err = self.process.communicate()
        self._limit.cancel()
        self.out += out.splitlines()
        sys.stdout.write(f"exit code {self.process.returncode}\n{self.err}")  # shown if the test fails
        return self.process.returncode

    @property
    def ends(self) -> list[str]:
        """Return the lines that each `fit_end` of the faulty plugin recorded."""
        path = self.directory / "ends"
        return path.read_text().splitlines() if path.exists() else []

    def rows(self) -> list[int]:
        """Return the steps in `metrics.jsonl`."""
        path = next(self.directory.glob("runs/*/metrics.jsonl"))
        return [json.loads(line)["step"] for line in path.read_text().splitlines()]

    def checkpoints(self) -> list[str]:
        """Return the names of the checkpoints."""
        return sorted(path.name for path in self.directory.glob("runs/*/checkpoints/step_*"))

    def left(self, patience: float = 10.0) -> list[str]:
        """Return the processes, shared memory and temporary files that remain."""
        deadline = time.monotonic() + patience
        while (found := self._left()) and time.monotonic() < deadline:
            time.sleep(0.05)
        return found

    def _left(self) -> list[str]:
        files = (path.relative_to(self._temporary) for path in self._temporary.rglob("*"))
        temporary = [path.name for path in files if not path.parts[0].startswith("torchelastic_")]  # kept by torchrun
        found = self.directory.glob("runs/**/.*")
        hidden = [str(path.relative_to(self.directory)) for path in found if path.name != ".no_step"]
        return [*processes_of(self.process.pid), *_orphans(self._shared), *temporary, *hidden]


def _pending(process: int) -> list[int]:
    """Return the masks of signals that are pending for a process and for its main thread."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return [int(line.split()[1], 16) for line in lines if line.startswith(("SigPnd", "ShdPnd"))]


def processes_of(session: int) -> list[str]:
    """Return the live processes of a session."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = path.read_text()
        except OSError:
            continue
        state, _, _, of = text.rpartition(")")[2].split()[:4]
        if int(of) == session and state != "Z":
            found.append(text)
    return found


def _shared_memory() -> set[str]:
    return {str(path) for path in Path("/dev/shm").iterdir()}


def _orphans(before: set[str]) -> list[str]:
    """Return new shared memory that no process has open; that of concurrent tests is open."""
    new = _shared_memory() - before
    if not new:
        return []
    used = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            used |= {str(link.readlink()) for link in (process / "fd").iterdir()}
            used |= {line.split()[-1] for line in (process / "maps").read_text().splitlines() if "/dev/shm" in line}
        except OSError:
            continue
    return sorted(new - used)
