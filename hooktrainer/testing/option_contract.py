"""Check of the options of a class, which all contracts share."""

from __future__ import annotations

from typing import Any

from hooktrainer.run.option_docs import options_of


def require_option_docs(cls: type[Any]) -> None:
    """Raise `AssertionError` if an option of a class has no docstring."""
    bare = [option.name for option in options_of(cls) if not option.doc]
    assert not bare, f"{cls.__name__}: no docstring under the option {', '.join(bare)}"
