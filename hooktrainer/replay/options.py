"""The `replay` section of a configuration: what the replay buffer puts up with."""

from __future__ import annotations

from typing import Literal

import attrs
from attrs.validators import ge, gt, in_, optional


@attrs.frozen(kw_only=True)
class ReplayOptions:
    """How many groups may be outstanding, how long they may take, and how many may fail."""

    capacity: int | None = attrs.field(default=None, validator=optional(ge(1)))
    """Groups that may be outstanding at once, at least one mini-batch; no limit if left out."""
    when_full: Literal["block", "evict"] = attrs.field(default="block", validator=in_(("block", "evict")))
    """`block`: what has no room is dispatched later; `evict`: the stalest finished group is thrown away for it."""
    sample_timeout_s: float | None = attrs.field(default=None, validator=optional(gt(0)))
    """Seconds that the loop waits for one mini-batch before the run fails; for ever if left out."""
    group_timeout_s: float | None = attrs.field(default=None, validator=optional(gt(0)))
    """Seconds that one group may take; then it is given up and replaced. For ever if left out."""
    max_failed_groups: int = attrs.field(default=0, validator=ge(0))
    """Groups of a run whose rollout may raise; the error of the next one ends the run."""
    max_lost_groups: int = attrs.field(default=64, validator=ge(0))
    """Groups of a run that may time out, be cancelled or die with their worker."""
