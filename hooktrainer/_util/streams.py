"""Standard output and error: a closed stream, a full disk or a limited encoding does not end a run."""

from __future__ import annotations

import codecs
import os
import sys
from contextlib import suppress
from typing import Final, TextIO

_PLAIN: Final = "hooktrainer.plain"


class OutputLostError(Exception):
    """The output of a command could not be written; it was reported."""


def prepare() -> None:
    """Open streams that are closed on the null device, and replace characters that standard output cannot encode.

    A file opened later would otherwise get the number of a closed stream, and receive its text.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            _open_null(number)
            setattr(sys, name, open(number, "w" if number else "r", encoding="utf-8", closefd=False))  # noqa: SIM115
    codecs.register_error(_PLAIN, _plain)
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None and getattr(sys.stdout, "errors", None) == "strict":
        reconfigure(errors=_PLAIN)


def write_stdout(text: str) -> None:
    """Write to standard output; drop the text once the output is closed."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except (OSError, ValueError) as error:
        discard_stdout(error)


def write_result(text: str) -> None:
    """Write the result of a command. Raise `OutputLostError` if standard output takes no more."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        _to_nowhere(sys.stdout)
        if not isinstance(error, BrokenPipeError):  # the reader of a pipe left on purpose
            write_stderr(f"standard output cannot be written ({error.strerror})\n")
        raise OutputLostError from None


def write_stderr(text: str) -> None:
    """Write to standard error; drop the text once the output is closed."""
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except (OSError, ValueError):
        _to_nowhere(sys.stderr)


def discard_stdout(error: OSError | ValueError) -> None:
    """Report once that standard output cannot be written, and discard all later output."""
    _to_nowhere(sys.stdout)
    why = getattr(error, "strerror", None) or error
    write_stderr(f"standard output cannot be written ({why}): no more lines are shown, the run continues\n")


def _to_nowhere(stream: TextIO) -> None:
    """Send a stream to the null device, including buffered text, which Python would try to write again at exit."""
    with suppress(OSError, ValueError):
        _open_null(stream.fileno())


def _open_null(number: int) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    if null == number:
        os.set_inheritable(number, True)
    else:
        os.dup2(null, number)
        os.close(null)


def _plain(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    lost = error.object[error.start : error.end]
    return "".join({"·": "|"}.get(letter, "?") for letter in lost), error.end
