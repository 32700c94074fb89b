"""Copies of this process, made by `os.fork` in user code. A copy ends before it can act for the original.

A signal that arrives during a fork waits until the child has handlers of its own. Otherwise Python discards it in the
child, and reports it to the parent if the wakeup file descriptor is set.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, NoReturn

from hooktrainer._util.streams import write_stderr
from hooktrainer.errors import message_of, traceback_of

HANDLED: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""The signals that end a run."""
_in_child: Final[list[Callable[[], object]]] = []
_forking: Final = threading.local()
_generation = 0
"""Number of forks between the first Python process and this one."""


class Original:
    """The process that this object was created in."""

    def __init__(self) -> None:
        self._generation = _generation

    @property
    def is_copied(self) -> bool:
        """Whether the current process is a copy, made by a fork since then."""
        return _generation != self._generation

    def exit_if_copied(self, error: BaseException | None = None) -> None:
        """Exit a copy as Python would after `error`, but without any `finally` block or exit handler of the run."""
        if self.is_copied:
            _exit_copy(error)

    @contextmanager
    def without_copies(self) -> Iterator[None]:
        """Exit a copy that leaves the block, also by an exception."""
        try:
            yield
        except BaseException as error:
            self.exit_if_copied(error)
            raise
        self.exit_if_copied()


def call_in_forks(action: Callable[[], object]) -> None:
    """Call `action` in each forked process, before it receives a signal of `HANDLED`."""
    _in_child.append(action)


def exit_now(code: int) -> NoReturn:
    """Exit the process at once, without waiting for its threads."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # a closed stream, or an object of user code
            stream.flush()
    os._exit(code)


def _exit_copy(error: BaseException | None) -> NoReturn:
    if error is None:
        write_stderr(
            f"process {os.getpid()} is a copy of the process of the run, made by os.fork in a plugin, task or model. "
            "It is ended, because only one process can continue the run. End a forked process with os._exit(0)\n"
        )
    elif isinstance(error, KeyboardInterrupt):
        exit_now(130)
    elif isinstance(error, SystemExit):
        if error.code is not None and not isinstance(error.code, int):
            write_stderr(f"{message_of(error.code)}\n")
        exit_now(error.code if isinstance(error.code, int) else int(error.code is not None))
    else:
        write_stderr(traceback_of(error))
    exit_now(1)


def _block() -> None:
    _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)


def _unblock() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)


def _start_child() -> None:
    global _generation  # noqa: PLW0603 (a property of the process)
    _generation += 1
    try:
        for action in _in_child:
            action()
    finally:
        _unblock()


os.register_at_fork(before=_block, after_in_parent=_unblock, after_in_child=_start_child)
