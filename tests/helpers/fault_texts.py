"""Texts of faults as the command line prints them."""

from __future__ import annotations

import re


def without_sources(text: str) -> str:
    """Return the text without the plugins and overrides that faults are attributed to."""
    return re.sub(r"^(  \S+) \((?:\w+|(?:\w+; )?override .*?)\): ", r"\1: ", text, flags=re.MULTILINE)
