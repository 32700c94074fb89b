"""What somebody's code leaves running must not keep the process from ending."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Final, NoReturn

from hooktrainer._util.streams import complain

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

PATIENCE_S: Final = 1.0
"""Seconds for all that is left to end by itself, and again after SIGTERM."""


def leave_with(command: Callable[[], int]) -> int:
    """Run a command; what it leaves behind is ended and named. Does not return if a thread of it never ends."""
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
        complain(f"left running by the run, and does not end: thread {', '.join(stuck)}; the process ends without it\n")
        exit_now(code)
    return code


def exit_now(code: int) -> NoReturn:
    """End the process at once, whatever still runs in it."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            continue
    os._exit(code)


def _children() -> list[BaseProcess]:
    """Processes that Python would wait for when it exits."""
    module = sys.modules.get("multiprocessing.process")  # who has started one has imported it
    return module.active_children() if module is not None else []


def _end_processes(children: list[BaseProcess]) -> None:
    for act, name in ((None, ""), ("terminate", "SIGTERM"), ("kill", "SIGKILL")):
        for child in [child for child in children if act and child.is_alive()]:
            complain(f"left running by the run: process {child.name} (pid {child.pid}); sending {name}\n")
            getattr(child, act or "")()
        deadline = monotonic() + PATIENCE_S
        for child in children:
            child.join(max(0.0, deadline - monotonic()))
