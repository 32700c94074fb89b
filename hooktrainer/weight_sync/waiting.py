"""Waits of a weight sync: it says what it waits for, and it does not wait for ever."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable
from time import monotonic
from typing import Final

_LOG: Final = logging.getLogger("hooktrainer")
REMINDER_S: Final = 60.0
"""Seconds after which a sync that waits says what it waits for."""


def wait_until(
    changed: threading.Condition, done: Callable[[], object], seconds: float, awaited: Callable[[], str]
) -> bool:
    """Wait with the lock of `changed` held, with reminders of what is `awaited`; False if it is not done in time.

    For ever, and without a word, if `seconds` is infinite: then somebody else keeps the time.
    """
    if seconds == math.inf:
        return bool(changed.wait_for(done))
    deadline = monotonic() + seconds
    while not changed.wait_for(done, max(0.0, min(REMINDER_S, deadline - monotonic()))):
        if monotonic() >= deadline:
            return False
        _LOG.warning("a weight sync is still waiting: %s", awaited())
    return True
