"""What a learner hands to a checkpoint, nested mappings of tensors by name, and putting it back."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final

import torch
from torch import Tensor, nn

from hooktrainer.errors import CheckpointError
from hooktrainer.learner.adamw import AdamW
from hooktrainer.learner.experience import Models
from hooktrainer.models.policy import full_state

_LOG: Final = logging.getLogger("hooktrainer")
_SHOWN: Final = 5
"""Differences of two models that a message names."""


def kept_state(models: Models, optimizers: Mapping[str, AdamW]) -> dict[str, Any]:
    """Weights of all networks, and what the optimizers remember. Nothing is a copy."""
    weights = {name: dict(full_state(module)) for name, module in _networks(models).items()}
    return {"weights": weights, "optimizers": {name: made.state_dict() for name, made in optimizers.items()}}


@torch.no_grad()
def restore(models: Models, optimizers: Mapping[str, AdamW], state: Mapping[str, Any]) -> None:
    """Copy it back. Raises `CheckpointError`, and copies nothing, if it is of other networks or optimizers."""
    kept = _flat(state["weights"])
    weights = _flat({name: full_state(module) for name, module in _networks(models).items()})
    moments: Mapping[str, Mapping[str, Any]] = state["optimizers"]
    differences = [*_differences(weights, kept), *_untrained(optimizers, moments)]
    if differences:
        more = f"; and {len(differences) - _SHOWN} more" if len(differences) > _SHOWN else ""
        raise CheckpointError(
            f"the checkpoint is of another model: {'; '.join(islice(differences, _SHOWN))}{more}. Resume with its "
            "own model and algorithm, or begin anew with run.resume=off"
        )
    for key, tensor in weights.items():
        tensor.copy_(torch.as_tensor(kept[key]))
    for name, optimizer in optimizers.items():
        optimizer.load_state_dict(moments[name])
        new = sorted(set(optimizer.trains) - moments[name].keys())
        if new and moments[name]:
            more = ", ..." if len(new) > _SHOWN else ""
            said = "%d parameters of the %s are trained that were not in the checkpoint, and begin anew: %s%s"
            _LOG.warning(said, len(new), name, ", ".join(new[:_SHOWN]), more)


def _networks(models: Models) -> dict[str, nn.Module]:
    named = {"policy": models.policy, "reference": models.reference, "critic": models.critic}
    return {name: module for name, module in named.items() if module is not None}


def _flat(weights: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    return {f"{name}.{key}": value for name, tensors in weights.items() for key, value in tensors.items()}


def _differences(weights: Mapping[str, Tensor], kept: Mapping[str, Any]) -> Iterator[str]:
    for name, wanted in weights.items():
        if name not in kept:
            yield f"it has no '{name}'"
        elif (found := torch.as_tensor(kept[name])).shape != wanted.shape or found.dtype != wanted.dtype:
            yield f"its '{name}' is {_shown(found)}, here {_shown(wanted)}"
    yield from (f"its '{name}' is unknown here" for name in kept if name not in weights)


def _untrained(optimizers: Mapping[str, AdamW], moments: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    for name, optimizer in optimizers.items():
        if name not in moments:
            yield f"it has no {name} optimizer"
        for key in moments.get(name, {}):
            if key not in optimizer.trains:
                yield f"its {name} optimizer trains '{key}', which is not trained here"


def _shown(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"
