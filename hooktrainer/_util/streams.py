"""Standard output and error: a closed stream, a full disk or a limited encoding does not end a run."""

from __future__ import annotations

import codecs
import os
import sys
from contextlib import suppress
from typing import Final, TextIO

_PLAIN: Final = "hooktrainer.plain"


def make_lenient() -> None:
    """Let standard output replace characters that its encoding lacks, instead of raising an error."""
    codecs.register_error(_PLAIN, _plain)
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None and getattr(sys.stdout, "errors", None) == "strict":
        reconfigure(errors=_PLAIN)


def write_stdout(text: str) -> None:
    """Write to standard output; drop the text once the output is closed."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        discard_stdout(error)


def write_stderr(text: str) -> None:
    """Write to standard error; drop the text once the output is closed."""
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:
        _to_nowhere(sys.stderr)


def discard_stdout(error: OSError) -> None:
    """Report once that standard output cannot be written, and discard all later output."""
    _to_nowhere(sys.stdout)
    write_stderr(f"standard output cannot be written ({error.strerror}): no more lines are shown, the run continues\n")


def _to_nowhere(stream: TextIO) -> None:
    """Send a stream to the null device, including buffered text, which Python would try to write again at exit."""
    with suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


def _plain(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    lost = error.object[error.start : error.end]
    return "".join({"·": "|"}.get(letter, "?") for letter in lost), error.end
