"""Durations in seconds that every wait of the standard library accepts."""

from __future__ import annotations

from typing import Any, Final

MAX_S: Final = 1e6
"""Longest duration, eleven days; some waits overflow beyond 1e9 seconds."""


def duration_fault(value: object) -> str:
    """Return why a value is no duration; empty if it is a finite number of seconds above 0."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= MAX_S:
        return ""
    return f"expected a number of seconds above 0, at most {MAX_S:,.0f}; found {value!r} ({type(value).__name__})"


def is_duration(_instance: object, _attribute: object, value: Any) -> None:
    """Raise `ValueError` unless a value is a duration; a validator of attrs."""
    if fault := duration_fault(value):
        raise ValueError(fault)
