"""A background thread that writes snapshots one after the other."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Final

from hooktrainer._util.threads import ReportingThread, failure_of
from hooktrainer.errors import CheckpointError
from hooktrainer.ports import Snapshot

_LOG: Final = logging.getLogger("hooktrainer")
_WARN_AFTER_S: Final = 3.0
"""Seconds that `close` waits for the disk before it logs a warning."""


class Writer:
    """Writes snapshots in the order of `submit`. One snapshot is being written and one may be queued.

    A third one blocks the caller. No due save is skipped, and no more than two snapshots are held here. The error of a
    failed write is raised once, by the next call of any method.
    """

    def __init__(self, write: Callable[[Snapshot, Mapping[str, float]], None]) -> None:
        self._write = write
        self._queued: tuple[Snapshot, Mapping[str, float]] | None = None
        self._writing: int | None = None
        """The step that is being written."""
        self._closing = False
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._warned = False
        self.abandoned = False
        """Whether `close` stopped waiting; nothing is published after that."""

    def submit(self, snapshot: Snapshot, scores: Mapping[str, float]) -> None:
        """Queue a snapshot; block while another one is queued. Raises the error of an earlier write."""
        self.raise_error()
        if self._thread is None or not self._thread.is_alive():
            self._closing = False
            # A daemon thread does not delay a process that has to exit at once. A checkpoint is never half published.
            self._thread = ReportingThread(self._run, "checkpoint-writer", self._fail)
            self._thread.start()
        started = perf_counter()
        with self._changed:
            self._changed.wait_for(lambda: self._queued is None or self._error is not None)
            self.raise_error()
            self._queued = (snapshot, scores)
            self._changed.notify_all()
        if (waited := perf_counter() - started) > 1.0 and not self._warned:
            self._warned = True
            _LOG.warning("the run waited %.1f s for the disk: checkpoints are due faster than they are written", waited)

    def raise_error(self) -> None:
        """Raise the error of a failed write that was not raised yet."""
        with self._changed:
            error, self._error = self._error, None
        if error is not None:
            raise error

    def drop_queued(self) -> None:
        """Drop the queued snapshot unless it has a score, because a newer snapshot will be written."""
        with self._changed:
            if self._queued is not None and not self._queued[1]:
                self._queued = None
                self._changed.notify_all()

    def close(self, timeout_s: float | None = None) -> None:
        """Wait until everything is written, and end the thread. Raises the error of a failed write.

        Raises `CheckpointError` after `timeout_s`; the writer is abandoned then.
        """
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(_WARN_AFTER_S if timeout_s is None else min(_WARN_AFTER_S, timeout_s))
            if self._thread.is_alive():
                _LOG.warning("waiting for the disk: the checkpoint of step %s is being written", self._writing)
                self._thread.join(None if timeout_s is None else max(0.0, timeout_s - _WARN_AFTER_S))
            if self._thread.is_alive():
                self.abandoned = True
                raise CheckpointError(f"the checkpoint of step {self._writing} was abandoned after {timeout_s:.1f} s")
            self._thread = None
        self.raise_error()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queued is not None or self._closing)
                if self._queued is None:
                    return
                (snapshot, scores), self._queued = self._queued, None
                self._writing = snapshot.step
                self._changed.notify_all()
            try:
                self._write(snapshot, scores)
            except BaseException as error:  # noqa: BLE001 (raised on the loop's thread)
                self._fail(error)
            finally:
                with self._changed:
                    self._writing = None
                    self._changed.notify_all()

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self._error = self._error or failure_of(error, CheckpointError)
            self._changed.notify_all()
