"""Putting kept weights back into a live model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final

import torch
from torch import Tensor

from hooktrainer.errors import CheckpointError

_SHOWN: Final = 5
"""Differences of two models that a message names."""


@torch.no_grad()
def restore_weights(weights: Mapping[str, Tensor], kept: Mapping[str, Tensor]) -> None:
    """Copy kept weights in place. Raises `CheckpointError`, and copies nothing, if they are another model's."""
    differences = list(_differences(weights, kept))
    if differences:
        more = f"; and {len(differences) - _SHOWN} more" if len(differences) > _SHOWN else ""
        raise CheckpointError(
            f"the checkpoint is of another model: {'; '.join(islice(differences, _SHOWN))}{more}. Resume with its "
            "own model, or begin anew with run.resume=off"
        )
    for name, weight in weights.items():
        weight.copy_(kept[name])


def restore_optimizer(optimizer: torch.optim.Optimizer, kept: Mapping[int, Any]) -> None:
    """Put the moments back; learning rate, decay and the like are the configuration's."""
    groups = optimizer.state_dict()["param_groups"]
    unknown = kept.keys() - {number for group in groups for number in group["params"]}
    if unknown:
        raise CheckpointError(f"the checkpoint has optimizer state of {len(unknown)} parameters that are not trained")
    optimizer.load_state_dict({"state": dict(kept), "param_groups": groups})


def _differences(weights: Mapping[str, Tensor], kept: Mapping[str, Tensor]) -> Iterator[str]:
    for name, wanted in weights.items():
        found = kept.get(name)
        if found is None:
            yield f"it has no '{name}'"
        elif found.shape != wanted.shape or found.dtype != wanted.dtype:
            yield f"its '{name}' is {_shown(found)}, here {_shown(wanted)}"
    yield from (f"its '{name}' is unknown here" for name in kept if name not in weights)


def _shown(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"
