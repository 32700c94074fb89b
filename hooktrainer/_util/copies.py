"""Copies of the process of a run, made by `os.fork` in user code. A copy ends before it can act for the run."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from hooktrainer._util.streams import write_stderr
from hooktrainer.errors import message_of, traceback_of


def exit_now(code: int) -> NoReturn:
    """Exit the process at once, without waiting for its threads."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            continue
    os._exit(code)


def exit_copy(error: BaseException | None = None) -> NoReturn:
    """Exit a copy as Python would after `error`, but without any `finally` block or exit handler of the run."""
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


@contextmanager
def copies_ended() -> Iterator[None]:
    """End a copy that is forked in the block, when it leaves the block or raises an exception."""
    process = os.getpid()
    try:
        yield
    except BaseException as error:
        if os.getpid() != process:
            exit_copy(error)
        raise
    if os.getpid() != process:
        exit_copy()
