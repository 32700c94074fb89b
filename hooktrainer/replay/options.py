"""The `replay` section of a configuration: limits of the replay buffer."""

from __future__ import annotations

from typing import Literal

import attrs
from attrs.validators import ge, in_, optional

from hooktrainer._util.durations import is_duration


@attrs.frozen(kw_only=True)
class ReplayOptions:
    """How many groups may be outstanding, how long they may take, and how many may fail."""

    capacity: int | None = attrs.field(default=None, validator=optional(ge(1)))
    """Groups that may be outstanding at once, at least one mini-batch. No limit if left out."""
    when_full: Literal["block", "evict"] = attrs.field(default="block", validator=in_(("block", "evict")))
    """`block`: dispatch waits for room. `evict`: the stalest finished group is evicted to make room."""
    sample_timeout_s: float | None = attrs.field(default=None, validator=optional(is_duration))
    """Seconds that the loop waits for one mini-batch before the run fails. No timeout if left out."""
    group_timeout_s: float | None = attrs.field(default=None, validator=optional(is_duration))
    """Seconds from the start of generation after which a group fails and is replaced. No timeout if left out."""
    max_failed_groups: int = attrs.field(default=0, validator=ge(0))
    """Groups of a run whose rollout may raise. The error of the next one ends the run."""
    max_lost_groups: int = attrs.field(default=64, validator=ge(0))
    """Groups of a run that may time out, be cancelled, or fail because their worker died."""
