"""Snapshots written in the background, one after the other, by one thread."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Final

from hooktrainer.errors import CheckpointError
from hooktrainer.ports import Snapshot

_LOG: Final = logging.getLogger("hooktrainer")
_SILENT_S: Final = 3.0
"""Seconds that an end may wait for the disk without a word."""


class Writer:
    """Writes in the order of `put`; one snapshot is being written and one may wait.

    When a third comes, the disk is slower than the run, and the run waits: every one that is due will be there, and no
    more than these are ever in memory. A failure is raised by the next call of any method, once.
    """

    def __init__(self, write: Callable[[Snapshot, Mapping[str, float]], None]) -> None:
        self._write = write
        self._waiting: tuple[Snapshot, Mapping[str, float]] | None = None
        self._writing: int | None = None
        """The step that is being written."""
        self._closing = False
        self._failure: Exception | None = None
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._said = False
        self.abandoned = False
        """Whether nothing may be published any more."""

    def put(self, snapshot: Snapshot, scores: Mapping[str, float]) -> None:
        """Have it written; waits while another one waits already. Raises what failed before."""
        self.raise_failure()
        if self._thread is None:
            self._closing = False
            # A daemon, so that a process that is told to leave at once does; nothing is ever half published.
            self._thread = threading.Thread(target=self._run, name="checkpoint-writer", daemon=True)
            self._thread.start()
        started = perf_counter()
        with self._changed:
            self._changed.wait_for(lambda: self._waiting is None or self._failure is not None)
            self.raise_failure()
            self._waiting = (snapshot, scores)
            self._changed.notify_all()
        if (waited := perf_counter() - started) > 1.0 and not self._said:
            self._said = True
            _LOG.warning(
                "the run waited %.1f s for a checkpoint to be written: the disk is slower than they are due", waited
            )

    def raise_failure(self) -> None:
        """Raise what failed since it was last raised."""
        with self._changed:
            failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def forgo(self) -> None:
        """Something newer will be written: what waits need not be, unless it has a score that it may be kept for."""
        with self._changed:
            if self._waiting is not None and not self._waiting[1]:
                self._waiting = None
                self._changed.notify_all()

    def close(self, seconds: float | None = None) -> None:
        """End the thread once everything is written; says so if that takes long. Raises what failed.

        After so many seconds it is given up, which is a `CheckpointError`, and nothing is published any more.
        """
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(_SILENT_S if seconds is None else min(_SILENT_S, seconds))
            if self._thread.is_alive():
                _LOG.warning("the run ends once the checkpoint of step %s is on the disk, which is slow", self._writing)
                self._thread.join(None if seconds is None else max(0.0, seconds - _SILENT_S))
            if self._thread.is_alive():
                self.abandoned = True
                raise CheckpointError(f"the checkpoint of step {self._writing} was given up after {seconds:.1f} s")
            self._thread = None
        self.raise_failure()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting is not None or self._closing)
                if self._waiting is None:
                    return
                (snapshot, scores), self._waiting = self._waiting, None
                self._writing = snapshot.step
                self._changed.notify_all()
            try:
                self._write(snapshot, scores)
            except Exception as error:  # noqa: BLE001 (raised on the loop's thread)
                with self._changed:
                    self._failure = self._failure or error
            finally:
                with self._changed:
                    self._writing = None
                    self._changed.notify_all()
