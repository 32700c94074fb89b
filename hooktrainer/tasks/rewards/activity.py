"""The reward function that each thread is in, so that an error can name one that does not return."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

_CURRENT: Final[dict[int, Callable[[], str]]] = {}


@contextmanager
def active(description: Callable[[], str]) -> Iterator[None]:
    """Record that this thread is in the call that `description` describes. Calls are not nested."""
    thread = threading.get_ident()
    _CURRENT[thread] = description
    try:
        yield
    finally:
        _CURRENT.pop(thread, None)


def activity_of(thread: threading.Thread) -> str:
    """Return the call that a thread is in; empty if there is none."""
    description = _CURRENT.get(thread.ident or 0)
    return "" if description is None else description()
