"""Signals of forked processes: one that arrives during a fork waits until the child has handlers of its own.

Otherwise Python discards it in the child, and reports it to the parent if the wakeup file descriptor is set.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import Final

HANDLED: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""The signals that end a run."""
_in_child: Final[list[Callable[[], object]]] = []
_forking: Final = threading.local()


def call_in_forks(action: Callable[[], object]) -> None:
    """Call `action` in each forked process, before it receives a signal of `HANDLED`."""
    _in_child.append(action)


def _block() -> None:
    _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)


def _unblock() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)


def _start_child() -> None:
    try:
        for action in _in_child:
            action()
    finally:
        _unblock()


os.register_at_fork(before=_block, after_in_parent=_unblock, after_in_child=_start_child)
