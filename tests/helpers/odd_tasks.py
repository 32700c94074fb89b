"""Tasks that break the worker process that they run in."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import attrs

from hooktrainer.tasks.addition import Addition


class TwoArguments(Exception):
    """Can be pickled, but not be made again."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} and {second}")


class Holding(Exception):
    """Cannot be pickled."""

    def __init__(self) -> None:
        super().__init__("holds a function")
        self.function: Callable[[], None] = lambda: None


@attrs.frozen(kw_only=True)
class Odd(Addition):
    """Does what `act` says when it scores; only the first time, if it is given a file to remember that in."""

    act: str = ""
    once: Path | None = None

    def score(self, truth: str, answer: str) -> float:
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
            case "two arguments":
                raise TwoArguments("one", "other")
            case "holding":
                raise Holding
            case "system exit":
                raise SystemExit(3)
        return 1.0


@attrs.frozen(kw_only=True)
class Stuck(Addition):
    """Opens a pipe when it first scores, and never returns from that; later ones are well."""

    inside: Path
    once: Path

    def score(self, truth: str, answer: str) -> float:
        if not self.once.exists():
            self.once.touch()
            self.inside.open("w").close()
            signal.pause()
        return 1.0


@attrs.frozen(kw_only=True)
class Blocked(Addition):
    """Opens one pipe when it begins to score, and goes on when another is opened; ignores SIGTERM meanwhile."""

    inside: Path
    go_on: Path

    def score(self, truth: str, answer: str) -> float:
        self.inside.open("w").close()
        self.go_on.open().close()
        return 1.0
