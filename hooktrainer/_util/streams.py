"""Standard output and error, which may be closed, full, or unable to say what is to be said; a run outlives that."""

from __future__ import annotations

import codecs
import os
import sys
from contextlib import suppress
from typing import Final, TextIO

_PLAIN: Final = "hooktrainer.plain"


def make_lenient() -> None:
    """Let standard output replace what its encoding lacks, instead of raising in the middle of a text."""
    codecs.register_error(_PLAIN, _plain)
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None and getattr(sys.stdout, "errors", None) == "strict":
        reconfigure(errors=_PLAIN)


def say(text: str) -> None:
    """Write to standard output, as far as anybody reads it."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        give_up_stdout(error)


def complain(text: str) -> None:
    """Write to standard error, as far as anybody reads it."""
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:
        _to_nowhere(sys.stderr)


def give_up_stdout(error: OSError) -> None:
    """Standard output takes no more: say so once, and let all that is still written there go nowhere."""
    _to_nowhere(sys.stdout)
    complain(f"nobody reads standard output any more ({error.strerror}): no more lines are shown, the run goes on\n")


def _to_nowhere(stream: TextIO) -> None:
    """Also what it holds and could not write, over which Python would stumble once more when it exits."""
    with suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


def _plain(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    lost = error.object[error.start : error.end]
    return "".join({"·": "|"}.get(letter, "?") for letter in lost), error.end
