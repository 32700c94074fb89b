"""Main function of a worker process, which ends with its engine."""

from __future__ import annotations

import atexit
import gc
import os
import signal
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from time import monotonic, sleep
from typing import Final

from torch import Tensor

from hooktrainer._util.forks import Original, call_in_forks
from hooktrainer._util.threads import ReportingThread
from hooktrainer.rollout.process.packing import unpack
from hooktrainer.rollout.process.process_exit import is_exiting
from hooktrainer.rollout.workers.worker import EXIT_GRACE_S, RemoteGroupSource, Worker

_EXITING_CHECK_S: Final = 0.001
_ORPHAN_CHECK_S: Final = 0.5
"""Seconds between two checks that the engine is alive."""


def main(connection: Connection, engine: int, config: bytes, sets: Sequence[Tensor]) -> None:
    """Run a worker until the engine, the process `engine`, closes the connection or dies."""
    source = RemoteGroupSource(connection.send)
    kill_orphans = _end_with(engine, source.report)
    # Neither blocked nor ignored: processes that a task starts would inherit that.
    signal.signal(signal.SIGTERM, lambda *_: None)
    call_in_forks(lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    atexit.register(gc.freeze)  # otherwise the last garbage collection visits all objects of torch
    try:
        worker = Worker(source, unpack(config), sets)
    except BaseException as error:  # noqa: BLE001 - the engine raises it
        source.report(error)
        return
    worker.start()
    try:
        while True:
            worker.handle(connection.recv())
    except (EOFError, OSError):
        if not worker.stop():
            kill_orphans()
            os._exit(0)


def _end_with(engine: int, on_failure: Callable[[BaseException], None]) -> Callable[[], None]:
    """End this process, and those that it starts, with its parent `engine`.

    Return a function that kills them if the engine has died. A process that the engine forked may hold the other end of
    the connection open.
    """
    worker = Original()

    def kill_orphans() -> None:
        if worker.is_copied:
            return
        deadline = monotonic() + EXIT_GRACE_S
        while os.getppid() == engine and is_exiting(engine) and monotonic() < deadline:
            # It has closed the connection, and is still the parent.
            sleep(_EXITING_CHECK_S)
        if os.getppid() != engine:
            os.killpg(os.getpid(), signal.SIGKILL)

    def watch() -> None:
        while os.getppid() == engine:
            sleep(_ORPHAN_CHECK_S)
        sleep(EXIT_GRACE_S)
        kill_orphans()

    atexit.register(kill_orphans)  # first, so that it is called last
    ReportingThread(watch, "orphan-check", on_failure).start()
    return kill_orphans
