"""Refuse names and paths that no file can have, before a run creates one."""

from __future__ import annotations

import os
import unicodedata
from typing import Final

MAX_NAME: Final = 255
"""Bytes of a name on the file systems of Linux and macOS."""
MAX_PATH: Final = 4095
"""Bytes of a path."""
MAX_RUN: Final = 240
"""Bytes of the name of a run, which leaves room for the lock file `.<name>.lock` and for `<name>.1`."""


def run_name_fault(name: str) -> str:
    """Return why a run cannot have this name; empty if it can."""
    size = len(name.encode(errors="surrogatepass"))
    if not name or "/" in name or "\0" in name or name in {".", ".."}:
        text = "so it is not empty and has no '/'"
    elif size > MAX_RUN:
        text = f"so it has at most {MAX_RUN} bytes, found {size}"
    elif name.startswith(".") or name.endswith("."):
        text = "so it does not start or end with a dot"
    elif any(unicodedata.category(char) in {"Cc", "Cs", "Zl", "Zp"} for char in name.replace("\t", "")):
        text = "so it has no line breaks or other control characters"
    else:
        return ""
    return f"the name of a run is the name of its directory, {text}"


def path_fault(path: str) -> str:
    """Return why no file can have this path; empty if one can."""
    if "\0" in path:
        return "a path has no zero byte"
    try:
        longest, size = max(len(os.fsencode(part)) for part in path.split("/")), len(os.fsencode(path))
    except UnicodeEncodeError:
        return "it has characters that no file name can have"
    if longest > MAX_NAME:
        return f"the name of a file or directory has at most {MAX_NAME} bytes, found {longest}"
    return f"a path has at most {MAX_PATH} bytes, found {size}" if size > MAX_PATH else ""
