"""Snapshots written in the background, one after the other, by one thread."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Final

from hooktrainer.checkpoint.snapshot import Snapshot

_LOG: Final = logging.getLogger("hooktrainer")


class Writer:
    """Writes in the order of `put`; one snapshot is being written and one may wait.

    When a third comes, the disk is slower than the run, and the run waits: every one that is due will be there, and no
    more than these are ever in memory. A failure is raised by the next call of any method, once.
    """

    def __init__(self, write: Callable[[Snapshot, Mapping[str, float]], None]) -> None:
        self._write = write
        self._waiting: tuple[Snapshot, Mapping[str, float]] | None = None
        self._writing = False
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

    def flush(self) -> None:
        """Return once everything is written. Raises what failed."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting is None and not self._writing)
        self.raise_failure()

    def raise_failure(self) -> None:
        """Raise what failed since it was last raised."""
        with self._changed:
            failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def close(self) -> None:
        """End the thread once everything is written. Raises what failed."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self.raise_failure()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting is not None or self._closing)
                if self._waiting is None:
                    return
                (snapshot, scores), self._waiting, self._writing = self._waiting, None, True
                self._changed.notify_all()
            try:
                self._write(snapshot, scores)
            except Exception as error:  # noqa: BLE001 (raised on the loop's thread)
                with self._changed:
                    self._failure = self._failure or error
            finally:
                with self._changed:
                    self._writing = False
                    self._changed.notify_all()
