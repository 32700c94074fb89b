"""A limit for the exit of the process, where handlers of `atexit` and queues of `multiprocessing` may hang."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from contextlib import suppress
from functools import partial
from time import monotonic
from types import FrameType
from typing import Any, Final

from hooktrainer._util.forks import exit_now
from hooktrainer._util.places import place

EXIT_S: Final = 5.0
"""Seconds that the exit of the process may take."""
_FRESH_S: Final = 10.0
"""Seconds after which a script that still runs has other work, so that its exit is its own."""

_handlers: Final[list[Any]] = []
"""Those that `limit_exit` has set."""
_codes: Final[list[int]] = []
"""Exit codes that `limit_exit` was called with."""
_skips_finalization = False


def limit_exit(code: int) -> None:
    """Exit the process with `code` if its exit starts within seconds from now and then takes more than `EXIT_S`."""
    _codes.append(code)
    atexit.register(_start, code, monotonic())  # the last one that is registered is called first


def skip_finalization() -> None:
    """Exit without the finalization of Python, once all handlers of `atexit` were called.

    It is for processes with native threads that hold Python objects, such as those of gloo: one that drops an object
    during finalization aborts the process.
    """
    global _skips_finalization  # noqa: PLW0603 (a property of the process)
    _skips_finalization = True


def _end() -> None:
    """End the limit. Python removes signal handlers next, so that the alarm would kill the process."""
    if signal.getsignal(signal.SIGALRM) in _handlers:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
    if _skips_finalization and _codes:
        exit_now(_codes[-1])


# Called after the handlers that are registered later, as those of all modules that user code imports.
atexit.register(_end)


def _start(code: int, since: float) -> None:
    if threading.current_thread() is threading.main_thread() and monotonic() - since < _FRESH_S:
        _handlers.append(partial(_exit, code))
        signal.signal(signal.SIGALRM, _handlers[-1])
        signal.setitimer(signal.ITIMER_REAL, EXIT_S)


def _exit(code: int, _number: int, frame: FrameType | None) -> None:
    with suppress(Exception):  # buffered text, unless a stream is broken
        sys.stdout.flush()
    text = (
        f"at the exit of the process, {place(frame)} did not return within {EXIT_S:g} s; the process exits without it\n"
    )
    try:
        os.write(2, text.encode(errors="replace"))
    finally:
        os._exit(code)
