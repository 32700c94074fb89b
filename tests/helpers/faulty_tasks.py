"""Tasks that break the worker process that they run in."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import attrs

from hooktrainer.tasks.addition import Addition


class PicklesOneWay(Exception):
    """An exception that can be pickled, but not unpickled."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} and {second}")


class Unpicklable(Exception):
    """An exception that cannot be pickled."""

    def __init__(self) -> None:
        super().__init__("holds a function")
        self.function: Callable[[], None] = lambda: None


@attrs.frozen(kw_only=True)
class Faulty(Addition):
    """Performs `act` in `score`: every time, or only the first time if `once` is the path of a marker file."""

    act: str = ""
    once: Path | None = None

    def grade(self, truth: str, answer: str) -> float:
        if self.once is not None:
            if self.once.exists():
                return 1.0
            self.once.touch()
        match self.act:
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "exit":
                os._exit(0)
            case "boom":
                raise ValueError(f"boom at {time.monotonic()}")
            case "pickles one way":
                raise PicklesOneWay("one", "other")
            case "unpicklable":
                raise Unpicklable
            case "system exit":
                raise SystemExit(3)
        return 1.0


@attrs.frozen(kw_only=True)
class ForksThenDies(Addition):
    """Forks a process that leaves the session of the worker and writes its pid; then kills the worker if it `dies`."""

    pid: Path
    dies: bool = True

    def grade(self, truth: str, answer: str) -> float:
        if not self.pid.exists():
            readable, writable = os.pipe()
            if os.fork() == 0:
                os.setsid()
                self.pid.write_text(str(os.getpid()))
                os.write(writable, b"x")
                time.sleep(600)
                os._exit(0)
            os.read(readable, 1)
            if self.dies:
                os.kill(os.getpid(), signal.SIGKILL)
        return 1.0


@attrs.frozen(kw_only=True)
class Starts(Addition):
    """Starts a program in the first `score`, and writes its pid."""

    pid: Path

    def grade(self, truth: str, answer: str) -> float:
        if not self.pid.exists():
            program = subprocess.Popen(["sleep", "600"])
            self.pid.with_suffix(".new").write_text(str(program.pid))
            self.pid.with_suffix(".new").rename(self.pid)
        return 1.0


@attrs.frozen(kw_only=True)
class NeverReturns(Addition):
    """Opens the pipe `inside` in the first `score`, which never returns. Later scores return 1."""

    inside: Path
    once: Path

    def grade(self, truth: str, answer: str) -> float:
        if not self.once.exists():
            self.once.touch()
            self.inside.open("w").close()
            signal.pause()
        return 1.0


@attrs.frozen(kw_only=True)
class WaitsInScore(Addition):
    """Opens the pipe `inside` at the start of each `score`, and returns once the pipe `proceed` is opened."""

    inside: Path
    proceed: Path

    def grade(self, truth: str, answer: str) -> float:
        self.inside.open("w").close()
        self.proceed.open().close()
        return 1.0
