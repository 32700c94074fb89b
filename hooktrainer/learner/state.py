"""The state of a learner in a checkpoint, as nested mappings of tensors by name, and its restoration."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final

import torch
from torch import Tensor, nn

from hooktrainer.errors import CheckpointError
from hooktrainer.learner.experience import Models
from hooktrainer.learner.optimizer import Optimizer
from hooktrainer.models.policy import full_state

_LOG: Final = logging.getLogger("hooktrainer")
_SHOWN: Final = 5
"""Number of differences that an error message names."""


def learner_state(models: Models, optimizers: Mapping[str, Optimizer]) -> dict[str, Any]:
    """Return the weights of all networks and the moments of the optimizers. Not a copy."""
    weights = {name: dict(full_state(module)) for name, module in _networks(models).items()}
    return {"weights": weights, "optimizers": {name: made.state_dict() for name, made in optimizers.items()}}


@torch.no_grad()
def restore(models: Models, optimizers: Mapping[str, Optimizer], state: Mapping[str, Any]) -> None:
    """Restore the state returned by `learner_state()`.

    Raises `CheckpointError`, and changes nothing, if it belongs to other networks or optimizers.
    """
    saved = _flat(state["weights"])
    weights = _flat({name: full_state(module) for name, module in _networks(models).items()})
    moments: Mapping[str, Mapping[str, Any]] = state["optimizers"]
    differences = [*_differences(weights, saved), *_untrained(optimizers, moments)]
    if differences:
        more = f"; and {len(differences) - _SHOWN} more" if len(differences) > _SHOWN else ""
        raise CheckpointError(
            f"the checkpoint is of another model: {'; '.join(islice(differences, _SHOWN))}{more}. Resume with the "
            "model and algorithm of the checkpoint, or start a new run with run.resume=off"
        )
    for key, tensor in weights.items():
        tensor.copy_(torch.as_tensor(saved[key]))
    for name, optimizer in optimizers.items():
        optimizer.load_state_dict(moments[name])
        new = sorted(set(optimizer.trains) - moments[name].keys())
        if new and moments[name]:
            more = ", ..." if len(new) > _SHOWN else ""
            message = (
                "no optimizer state in the checkpoint for %d trained parameters of the %s, which starts at zero: %s%s"
            )
            _LOG.warning(message, len(new), name, ", ".join(new[:_SHOWN]), more)


def _networks(models: Models) -> dict[str, nn.Module]:
    named = {"policy": models.policy, "reference": models.reference, "critic": models.critic}
    return {name: module for name, module in named.items() if module is not None}


def _flat(weights: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    return {f"{name}.{key}": value for name, tensors in weights.items() for key, value in tensors.items()}


def _differences(weights: Mapping[str, Tensor], saved: Mapping[str, Any]) -> Iterator[str]:
    for name, expected in weights.items():
        if name not in saved:
            yield f"it has no '{name}'"
        elif (found := torch.as_tensor(saved[name])).shape != expected.shape or not _is_exact(found, expected):
            yield f"its '{name}' is {_shown(found)}, here {_shown(expected)}"
    yield from (f"its '{name}' is unknown here" for name in saved if name not in weights)


def _is_exact(found: Tensor, expected: Tensor) -> bool:
    """Return whether a copy has the same values: floating-point tensors may be wider than those of the checkpoint."""
    widened = found.is_floating_point() and torch.promote_types(found.dtype, expected.dtype) == expected.dtype
    return found.dtype == expected.dtype or widened


def _untrained(optimizers: Mapping[str, Optimizer], moments: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    for name, optimizer in optimizers.items():
        if name not in moments:
            yield f"it has no {name} optimizer"
        for key in moments.get(name, {}):
            if key not in optimizer.trains:
                yield f"its {name} optimizer trains '{key}', which is not trained here"


def _shown(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"
