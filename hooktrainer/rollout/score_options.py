"""The `reward` section of a configuration: the threads that score answers."""

from __future__ import annotations

from typing import Final

import attrs
from attrs.validators import ge, instance_of, le, optional

from hooktrainer._util.durations import is_duration

_TIMEOUT_S: Final[float | None] = 120.0


@attrs.frozen(kw_only=True)
class ScoreOptions:
    """How many groups are scored at once, and how long one may take."""

    timeout_s: float | None = attrs.field(default=_TIMEOUT_S, validator=optional(is_duration))
    """Seconds that the scores of one group may take. A group that takes longer fails; null sets no limit."""
    workers: int = attrs.field(default=8, validator=[instance_of(int), ge(1), le(1024)])
    """Threads that score, one group each; with worker processes, in each of them. 1 calls rewards one after the other,
    for functions that are not thread-safe or draw from a global random generator."""
