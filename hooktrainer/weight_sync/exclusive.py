"""One weight sync at a time: a second one on the same transport or engine waits, and one inside another is refused."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import attrs

from hooktrainer.errors import SyncError
from hooktrainer.weight_sync.waiting import wait_until

WAIT_S: Final = 600.0
"""Seconds that a sync waits for another one to end."""
# Entered in place of the condition, whose `__enter__` an interrupt can leave with the lock held for ever.
_LOCK: Final = threading.RLock()
_CHANGED: Final = threading.Condition(_LOCK)
_RUNNING: Final[dict[int, _Sync]] = {}
"""The sync that uses a transport or an engine, by `id` of that object."""


@attrs.frozen(eq=False)
class _Sync:
    version: int
    thread: threading.Thread = attrs.field(factory=threading.current_thread)

    def __str__(self) -> str:
        return f"version {self.version}, which the thread {self.thread.name} is publishing"


@contextmanager
def exclusive_sync(version: int, used: Sequence[object]) -> Iterator[None]:
    """Let no other sync use the objects `used` until the block ends; wait for the one that does.

    Raises `SyncError` if that one is running in this thread, and would wait for itself, or after `WAIT_S`.
    """
    sync, keys = _Sync(version), {id(each) for each in used}

    def others() -> list[_Sync]:
        return [_RUNNING[key] for key in keys if key in _RUNNING]

    try:
        with _LOCK:
            if outer := [other for other in others() if other.thread is sync.thread]:
                raise SyncError(
                    f"version {version} was not published: this thread is publishing version {outer[0].version}, and a "
                    "sync cannot start inside another one. Call `publish` again after the first call has returned"
                )
            if not wait_until(_CHANGED, lambda: not others(), WAIT_S, lambda: str(others()[0])):
                raise SyncError(f"version {version} was not published: waited {WAIT_S:g} s for {others()[0]}")
            _RUNNING.update(dict.fromkeys(keys, sync))
        yield
    finally:
        with _LOCK:
            for key in keys:
                if _RUNNING.get(key) is sync:
                    del _RUNNING[key]
            _CHANGED.notify_all()
