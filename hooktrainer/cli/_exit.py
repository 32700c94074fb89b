"""End the process even if user code left threads or processes running."""

from __future__ import annotations

import atexit
import gc
import sys
import threading
from collections.abc import Callable
from time import monotonic, sleep
from typing import TYPE_CHECKING, Final

from hooktrainer._util.exit_limit import limit_exit
from hooktrainer._util.forks import exit_now
from hooktrainer._util.streams import settle, write_stderr

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

PATIENCE_S: Final = 1.0
"""Seconds to wait for remaining threads and processes, and again after SIGTERM."""


def leave_with(command: Callable[[], int], *, exits: bool) -> int:
    """Run a command, then end and report the processes it left running; exit if one of its threads does not end.

    `exits` states whether the process exits afterwards; its exit handlers are limited then, too.
    """
    before = {*_children(), *threading.enumerate()}
    code = command()
    try:
        _end_processes([child for child in _children() if child not in before])
        left = [thread for thread in threading.enumerate() if thread not in before and not thread.daemon]
        deadline = monotonic() + PATIENCE_S
        for thread in left:
            thread.join(max(0.0, deadline - monotonic()))
    except KeyboardInterrupt:
        exit_now(130)
    stuck = [thread.name for thread in left if thread.is_alive()]
    if stuck:
        write_stderr(f"left running: thread {', '.join(stuck)}, which does not end; the process exits without it\n")
        exit_now(code)
    settle()
    if exits:
        atexit.register(gc.freeze)  # otherwise garbage collection at exit takes seconds with torch
        limit_exit(code)
    return code


def _children() -> list[BaseProcess]:
    """Return the processes that Python would wait for at exit."""
    module = sys.modules.get("multiprocessing.process")  # imported by any code that starts a process
    return module.active_children() if module is not None else []


def _end_processes(children: list[BaseProcess]) -> None:
    for act, name in ((None, ""), ("terminate", "SIGTERM"), ("kill", "SIGKILL")):
        for child in [child for child in children if act and child.is_alive()]:
            write_stderr(f"left running: process {child.name} (pid {child.pid}); sending {name}\n")
            getattr(child, act or "")()
        deadline = monotonic() + PATIENCE_S
        # `join` with a timeout waits for a pipe, which processes that the child forked hold open.
        while any(child.is_alive() for child in children) and monotonic() < deadline:
            sleep(0.01)
