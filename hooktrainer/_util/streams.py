"""Standard output and error: a closed stream, a full disk or a limited encoding does not end a run."""

from __future__ import annotations

import codecs
import logging
import os
import sys
from typing import Final, Literal, TextIO, TypeAlias

from hooktrainer.errors import message_of

_PLAIN: Final = "hooktrainer.plain"
_Output: TypeAlias = Literal["stdout", "stderr"]
_OUTPUTS: Final[tuple[_Output, ...]] = ("stdout", "stderr")
_ERRORS: Final = (Exception, SystemExit)
"""Errors of streams, which may be objects of user code."""


class OutputLostError(Exception):
    """The output of a command could not be written; it was reported."""


class StderrHandler(logging.Handler):
    """Writes log lines to standard error, also if user code has replaced it by an object that raises."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line."""
        write_stderr(f"{self.format(record)}\n")


def prepare() -> None:
    """Open streams that are closed on the null device, and replace characters that standard output cannot encode.

    A file opened later would otherwise get the number of a closed stream, and receive its text.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            setattr(sys, name, _null(number))
    logging.lastResort = StderrHandler(logging.WARNING)
    codecs.register_error(_PLAIN, _plain)
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None and getattr(sys.stdout, "errors", None) == "strict":
        reconfigure(errors=_PLAIN)


def write_stdout(text: str) -> None:
    """Write to standard output; drop the text once the output is closed."""
    try:
        _write("stdout", text)
    except _ERRORS as error:
        discard_stdout(error)


def write_result(text: str) -> None:
    """Write the result of a command. Raises `OutputLostError` if standard output takes no more."""
    try:
        _write("stdout", text)
    except _ERRORS as error:
        _discard("stdout")
        if not isinstance(error, BrokenPipeError):  # the reader of a pipe left on purpose
            write_stderr(f"standard output cannot be written ({_cause(error)})\n")
        raise OutputLostError from None


def write_stderr(text: str) -> None:
    """Write to standard error; drop the text once the output is closed."""
    try:
        _write("stderr", text)
    except _ERRORS:
        _discard("stderr")


def discard_stdout(error: BaseException) -> None:
    """Report once that standard output cannot be written, and discard all later output."""
    _discard("stdout")
    write_stderr(f"standard output cannot be written ({_cause(error)}): no more lines are shown, the run continues\n")


def settle() -> None:
    """Flush both streams, and replace one that raises: Python would exit with 120 instead of the code of the run."""
    for name in _OUTPUTS:
        try:
            _write(name, "")
        except _ERRORS:
            _discard(name)


def _write(name: _Output, text: str) -> None:
    """Write to a stream. An object of user code that raises is replaced by the stream that Python opened."""
    stream, opened = getattr(sys, name), getattr(sys, f"__{name}__")
    try:
        stream.write(text)
        stream.flush()
    except _ERRORS:
        if opened is None or stream is opened:
            raise
        setattr(sys, name, opened)
        opened.write(text)
        opened.flush()


def _cause(error: BaseException) -> object:
    return getattr(error, "strerror", None) or message_of(error)


def _discard(name: _Output) -> None:
    """Send a stream to the null device, including buffered text, which Python would try to write again at exit."""
    try:
        _open_null(getattr(sys, name).fileno())
    except _ERRORS:
        setattr(sys, name, _null(_OUTPUTS.index(name) + 1))


def _null(number: int) -> TextIO:
    _open_null(number)
    return open(number, "w" if number else "r", encoding="utf-8", closefd=False)


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
