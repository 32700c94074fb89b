"""What a checkpoint holds, in memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

if TYPE_CHECKING:
    from torch import Tensor


@attrs.frozen(eq=False, kw_only=True)
class Snapshot:
    """The state of a run at the end of a step; it shares no memory with what is being trained."""

    step: int
    """The last complete step, 0 before the first."""
    parts: Mapping[str, Any]
    """Strict JSON by the name of a part; tensors and arrays are mentioned in it by name."""
    tensors: Mapping[str, Tensor] = attrs.field(factory=dict)
    """On the host, contiguous, no two sharing memory."""
    arrays: Mapping[str, np.ndarray] = attrs.field(factory=dict)
