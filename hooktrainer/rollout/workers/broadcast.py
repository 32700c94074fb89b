"""Requests of a weight sync to all workers; a worker that does not reply in time is killed."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Final

from hooktrainer.errors import SyncError
from hooktrainer.rollout.workers.handle import WorkerHandle
from hooktrainer.weight_sync.waiting import wait_until

_LOG: Final = logging.getLogger("hooktrainer")
UNDO_S: Final = 1.5
"""Seconds that a worker has to reply while a sync is undone, because the run is ending."""
_DEATH_S: Final = 2.0
"""Seconds that a killed worker has to end."""


class Broadcast:
    """Sends a message to all workers and waits for their replies; a late worker is killed and restarted."""

    def __init__(self, changed: threading.Condition, seconds: float, has_failed: Callable[[], object]) -> None:
        """Wait for replies with `changed`, for at most `seconds`, until `has_failed()` is true."""
        self.undoing = False
        """Whether a failed sync is being undone: the deadline is short, and a late worker is also an error."""
        self._changed = changed
        self._seconds = seconds
        self._has_failed = has_failed
        self._tickets = 0

    def send(
        self, workers: Sequence[WorkerHandle], message_of: Callable[[int], object], task: str
    ) -> Sequence[WorkerHandle]:
        """Send `message_of(ticket)` to every worker that is ready; return these once each has replied or is dead.

        `task` names the request in messages. Raises `SyncError` naming late workers if a sync is being undone.
        """
        with self._changed:
            self._tickets += 1
            ticket = self._tickets
            asked = [worker for worker in workers if worker.ready]
            for worker in asked:
                worker.tickets.add(ticket)
                worker.reply = None
        seconds = UNDO_S if self.undoing else self._seconds
        deadline = monotonic() + seconds
        message = message_of(ticket)
        # Try all workers before waiting for one whose pipe is full.
        for worker in [worker for worker in asked if not worker.send(message, 0.0)]:
            worker.send(message, deadline - monotonic())

        def behind() -> list[WorkerHandle]:
            return [worker for worker in asked if ticket in worker.tickets]

        def awaited() -> str:
            states = ", ".join(f"{worker} {worker.state}" for worker in behind())
            return f"{', '.join(map(str, behind()))} to {task}; {states}"

        with self._changed:
            done = wait_until(
                self._changed, lambda: self._has_failed() or not behind(), deadline - monotonic(), awaited
            )
            late = [] if done else behind()
        if late:
            self._kill(late, f"did not {task} within {seconds:g} s")
        return asked

    def _kill(self, late: Sequence[WorkerHandle], fault: str) -> None:
        """Kill late workers. Their groups fail and are replaced, as those of any dead worker."""
        for worker in late:
            limit = "" if self.undoing else " (rollout.sync_timeout_s)"
            groups = f", with groups {', '.join(map(str, worker.groups))} in flight" if worker.groups else ""
            _LOG.warning("%s %s%s%s; sending SIGKILL; it %s", worker, fault, limit, groups, worker.state)
        with self._changed:
            for worker in late:
                worker.ready = False
                worker.tickets.clear()
        for worker in late:
            worker.kill()
        for worker in late:  # the caller may overwrite the weights that a killed worker reads
            worker.is_dead(_DEATH_S)
        if self.undoing:
            raise SyncError(f"{', '.join(map(str, late))} {fault}, and was killed")
