"""What a sync asks of all worker processes, and what becomes of one that does not answer."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from multiprocessing.connection import wait
from time import monotonic
from typing import Final

from hooktrainer.errors import SyncError
from hooktrainer.rollout.process.handle import Member
from hooktrainer.weight_sync.waiting import wait_until

_LOG: Final = logging.getLogger("hooktrainer")
HURRY_S: Final = 1.5
"""Seconds to answer while a sync is undone: the run is ending, and whoever ended it waits."""
_DEATH_S: Final = 2.0
"""Seconds that the system has to end a process that was killed."""


class Asking:
    """Asks workers in turn; one that does not answer in time is killed, and started anew as any that dies."""

    def __init__(self, changed: threading.Condition, seconds: float, given_up: Callable[[], object]) -> None:
        """`changed` tells of answers; once something is `given_up`, nobody is waited for."""
        self.hurried = False
        """Whether a sync is being undone: then who is late is an error besides."""
        self._changed = changed
        self._seconds = seconds
        self._given_up = given_up
        self._tickets = 0

    def ask(self, members: Sequence[Member], question: Callable[[int], object], what: str) -> Sequence[Member]:
        """Return once each that is set up has done it, or is dead; those who were asked.

        Raises `SyncError` that names who was late, if a sync is being undone.
        """
        with self._changed:
            self._tickets += 1
            ticket = self._tickets
            asked = [member for member in members if member.ready]
            for member in asked:
                member.tickets.add(ticket)
                member.scores = None
        seconds = HURRY_S if self.hurried else self._seconds
        deadline = monotonic() + seconds
        message = question(ticket)
        for member in [member for member in asked if not member.send(message, 0.0)]:  # they delay nobody else
            member.send(message, deadline - monotonic())

        def behind() -> list[Member]:
            return [member for member in asked if ticket in member.tickets]

        def awaited() -> str:
            return f"{', '.join(map(str, behind()))} to {what}"

        with self._changed:
            done = wait_until(self._changed, lambda: self._given_up() or not behind(), deadline - monotonic(), awaited)
            late = [] if done else behind()
        if late:
            self._end(late, f"did not {what} within {seconds:g} s")
        return asked

    def _end(self, late: Sequence[Member], fault: str) -> None:
        """Kill them; nobody is asked again, and what they had in work goes the way of all that is lost."""
        for member in late:
            limit = "" if self.hurried else " (rollout.sync_timeout_s)"
            groups = f", with groups {', '.join(map(str, member.groups))} in work" if member.groups else ""
            _LOG.warning("%s %s%s%s; sending SIGKILL", member, fault, limit, groups)
        with self._changed:
            for member in late:
                member.ready = False
                member.tickets.clear()
        for member in late:
            member.kill()
        for member in late:  # the weights that it reads may be written after this
            wait([member.process.sentinel], _DEATH_S)
        if self.hurried:
            raise SyncError(f"{', '.join(map(str, late))} {fault}, and was killed")
