"""Sinks that never return, or raise, from one of their methods."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from typing import ClassVar

import attrs

from hooktrainer.events import Status
from hooktrainer.ports import RunInfo


def announce(place: str) -> None:
    sys.stdout.write(f"AT {place}\n")
    sys.stdout.flush()


@attrs.define
class Hangs:
    """Never returns from the method `at`."""

    at: ClassVar[str] = "write"

    def _reach(self, method: str) -> None:
        if method == self.at:
            announce(method)
            self.hang()

    def hang(self) -> None:
        while True:
            time.sleep(60)

    def open(self, run: RunInfo) -> None:
        self._reach("open")

    def write(self, step: int, row: Mapping[str, object]) -> None:
        self._reach("write")

    def rewind(self, step: int) -> Sequence[int]:
        self._reach("rewind")
        return ()

    def close(self, status: Status) -> None:
        self._reach("close")


@attrs.define
class HangsInOpen(Hangs):
    at: ClassVar[str] = "open"


@attrs.define
class HangsInRewind(Hangs):
    at: ClassVar[str] = "rewind"


@attrs.define
class HangsInClose(Hangs):
    at: ClassVar[str] = "close"


@attrs.define
class TriesForEver(Hangs):
    """Catches every error, as the client of a tracker that tries again."""

    def hang(self) -> None:
        while True:
            try:
                time.sleep(60)
            except Exception:  # noqa: BLE001 (a client that tries again)
                continue


@attrs.define
class CatchesAll(Hangs):
    """Catches interrupts too."""

    def hang(self) -> None:
        while True:
            try:
                time.sleep(60)
            except BaseException:  # noqa: BLE001 (the worst client)
                continue


@attrs.define
class HangsInNativeCode(Hangs):
    """Hangs in a native call, which no signal interrupts; the interpreter lock is free."""

    def hang(self) -> None:
        library = ctypes.CDLL(None)
        mutex = ctypes.create_string_buffer(64)
        library.pthread_mutex_lock(mutex)
        library.pthread_mutex_lock(mutex)


@attrs.define
class HangsAfterAsyncio(Hangs):
    """Replaces the file descriptor that a signal wakes, as an event loop does."""

    def hang(self) -> None:
        signal.set_wakeup_fd(-1)
        super().hang()


@attrs.define
class CountsInChild(Hangs):
    """Forks a child that receives a signal of its own, which does not concern the run."""

    def hang(self) -> None:
        ready, begun = os.pipe()
        if not (child := os.fork()):
            signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
            os.write(begun, b"x")
            while True:
                signal.pause()
        os.read(ready, 1)
        os.kill(child, signal.SIGTERM)
        os.waitpid(child, 0)
        os.close(ready)
        os.close(begun)
