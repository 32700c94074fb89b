"""What a sync asks of all worker processes, and what becomes of one that does not answer."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from multiprocessing.connection import wait
from time import monotonic
from typing import Final

from hooktrainer.errors import SyncError
from hooktrainer.rollout.process.handle import WorkerHandle
from hooktrainer.weight_sync.waiting import wait_until

_LOG: Final = logging.getLogger("hooktrainer")
HURRY_S: Final = 1.5
"""Seconds to answer while a sync is undone: the run is ending, and whoever ended it waits."""
_DEATH_S: Final = 2.0
"""Seconds that the system has to end a process that was killed."""


class Broadcast:
    """Asks workers in turn; one that does not answer in time is killed, and started anew as any that dies."""

    def __init__(self, changed: threading.Condition, seconds: float, given_up: Callable[[], object]) -> None:
        """`changed` tells of answers; once something is `given_up`, nobody is waited for."""
        self.hurried = False
        """Whether a sync is being undone: then who is late is an error besides."""
        self._changed = changed
        self._seconds = seconds
        self._given_up = given_up
        self._tickets = 0

    def ask(
        self, workers: Sequence[WorkerHandle], question: Callable[[int], object], what: str
    ) -> Sequence[WorkerHandle]:
        """Return once each that is set up has done it, or is dead; those who were asked.

        Raises `SyncError` that names who was late, if a sync is being undone.
        """
        with self._changed:
            self._tickets += 1
            ticket = self._tickets
            asked = [worker for worker in workers if worker.ready]
            for worker in asked:
                worker.tickets.add(ticket)
                worker.scores = None
        seconds = HURRY_S if self.hurried else self._seconds
        deadline = monotonic() + seconds
        message = question(ticket)
        for worker in [worker for worker in asked if not worker.send(message, 0.0)]:  # they delay nobody else
            worker.send(message, deadline - monotonic())

        def behind() -> list[WorkerHandle]:
            return [worker for worker in asked if ticket in worker.tickets]

        def awaited() -> str:
            return f"{', '.join(map(str, behind()))} to {what}"

        with self._changed:
            done = wait_until(self._changed, lambda: self._given_up() or not behind(), deadline - monotonic(), awaited)
            late = [] if done else behind()
        if late:
            self._end(late, f"did not {what} within {seconds:g} s")
        return asked

    def _end(self, late: Sequence[WorkerHandle], fault: str) -> None:
        """Kill them; nobody is asked again, and what they had in work goes the way of all that is lost."""
        for worker in late:
            limit = "" if self.hurried else " (rollout.sync_timeout_s)"
            groups = f", with groups {', '.join(map(str, worker.groups))} in work" if worker.groups else ""
            _LOG.warning("%s %s%s%s; sending SIGKILL", worker, fault, limit, groups)
        with self._changed:
            for worker in late:
                worker.ready = False
                worker.tickets.clear()
        for worker in late:
            worker.kill()
        for worker in late:  # the weights that it reads may be written after this
            wait([worker.process.sentinel], _DEATH_S)
        if self.hurried:
            raise SyncError(f"{', '.join(map(str, late))} {fault}, and was killed")
