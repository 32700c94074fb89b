"""Wait for a condition with a deadline, and log a reminder while the wait lasts."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable
from time import monotonic
from typing import Final

_LOG: Final = logging.getLogger("hooktrainer")
REMINDER_S: Final = 60.0
"""Seconds between two reminders of a wait."""


def wait_until(
    changed: threading.Condition, done: Callable[[], object], seconds: float, awaited: Callable[[], str]
) -> bool:
    """Wait for at most `seconds` until `done()` is true; return whether it is.

    The caller holds the lock of `changed`. Every `REMINDER_S`, the text of `awaited()` is logged. If `seconds` is
    infinite, nothing is logged: another process enforces the deadline.
    """
    if seconds == math.inf:
        return bool(changed.wait_for(done))
    now = monotonic()
    deadline, reminder = now + seconds, now + REMINDER_S
    while not changed.wait_for(done, max(0.0, min(reminder, deadline) - now)):
        now = monotonic()
        if now >= deadline:
            return False
        if now >= reminder:
            _LOG.warning("weight sync is still waiting for %s", awaited())
            reminder = now + REMINDER_S
    return True
