"""Whether an update may be made."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from hooktrainer.errors import NonFiniteError
from hooktrainer.learner.update_metrics import name_of

_REMEDIES: Final = (
    "Try a lower `optim.lr`, a longer `optim.lr_warmup` or a lower `optim.grad_clip`; if the loss alone is not "
    "finite, look at the scores and the sampler's log-probabilities."
)


def is_finite(values: Mapping[str, float], rates: Mapping[str, float], *, raises: bool) -> bool:
    """Whether losses and norms of gradients are finite. Raises `NonFiniteError` that says which is not, if it is to."""
    judged = {name_of(key): value for key, value in values.items() if key.endswith(("_loss", "/grad_norm"))}
    wrong = [key for key, value in judged.items() if not math.isfinite(value)]
    if wrong and raises:
        shown = ", ".join(f"{key} {value:.6g}" for key, value in judged.items())
        lr = ", ".join(f"{name}/lr {rate:g}" for name, rate in rates.items())
        raise NonFiniteError(f"{wrong[0]} is {judged[wrong[0]]}: no update was made ({shown}, {lr}). {_REMEDIES}")
    return not wrong
