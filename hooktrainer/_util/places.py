"""The method that a thread is in, for messages about components that do not return."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Collection
from types import FrameType
from typing import Final

_STANDARD_LIBRARY: Final = os.path.dirname(os.__file__)  # noqa: PTH120 (compared with strings)
_PACKAGE: Final = os.path.dirname(os.path.dirname(__file__)) + os.sep  # noqa: PTH120


def place(frame: FrameType | None) -> str:
    """Return the innermost method outside of the standard library that a frame is in, with its file and line."""
    first = library = ""
    while frame is not None:
        code = frame.f_code
        if not _is_standard(code.co_filename):
            owner = frame.f_locals.get("self")
            name = f"{type(owner).__name__}.{code.co_name}" if owner is not None else code.co_qualname
            found = f"{name} ({code.co_filename}, line {frame.f_lineno})"
            if owner is not None:
                return found
            first = first or found
        elif code.co_filename != threading.__file__:
            library = library or f"{code.co_qualname} ({code.co_filename}, line {frame.f_lineno})"
        frame = frame.f_back
    return first or library or "code of a library"


def place_of_thread(thread: threading.Thread) -> str:
    """Return the method that a thread is in."""
    return place(sys._current_frames().get(thread.ident or 0))


def place_of_user_code(thread: threading.Thread) -> str:
    """Return the innermost method that a thread is in, without those of hooktrainer that called user code."""
    frame = sys._current_frames().get(thread.ident or 0)
    found = ""
    while frame is not None and not (found and frame.f_code.co_filename.startswith(_PACKAGE)):
        if not _is_standard(frame.f_code.co_filename):
            owner = frame.f_locals.get("self")
            name = frame.f_code.co_qualname if owner is None else f"{type(owner).__name__}.{frame.f_code.co_name}"
            found_here = f"{name} ({frame.f_code.co_filename}, line {frame.f_lineno})"
            if owner is not None:
                return found_here
            found = found or found_here
        frame = frame.f_back
    return found or "code of a library"


def places_of_threads(names: Collection[str]) -> str:
    """Return the methods that the threads with these names are in, as text."""
    threads = [thread for thread in threading.enumerate() if thread.name in names]
    return ", ".join(f"{thread.name} is in {place_of_thread(thread)}" for thread in threads)


def _is_standard(file: str) -> bool:
    return file.startswith("<") or (file.startswith(_STANDARD_LIBRARY) and "site-packages" not in file)
