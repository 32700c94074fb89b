"""Preparation of a policy for training: its precision, and a check that equal weights give equal results."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final, cast

import torch
from torch import Tensor, nn

from hooktrainer.algorithms.logprobs import log_policy
from hooktrainer.errors import ConfigError, Fault
from hooktrainer.models.policy import Policy, Trunk, in_eval_mode
from hooktrainer.models.precision import to_single_precision
from hooktrainer.models.scoring import chunk_size

_LOG: Final = logging.getLogger("hooktrainer")
_REPEATED: Final = 1e-3
"""Allowed difference of a log-probability between two equal passes."""
_TRIES: Final = 8
"""Passes that must all change the global random state, before the model counts as one that draws."""
_IN_BATCH: Final = 0.05
"""Allowed difference between a pass over one text and one over a batch; half precision rounds them differently."""
_TEXTS: Final = ((0, 1), (1, 0), (1, 1), (0, 0))


def prepare_policy(module: nn.Module, *, uses_states: bool) -> int | None:
    """Convert a policy to single precision, and check that its log-probabilities are the same in every pass.

    Return the number of positions whose logits are computed at once; None for all, if the policy is not a `Trunk`, or
    its projected states differ from its logits. With `uses_states` they may not differ. The check makes a few passes
    over two tokens in evaluation mode. Raises `ConfigError` for a policy that fails.
    """
    name, device = type(module).__name__, next(module.parameters()).device
    count = len([*module.parameters(), *module.buffers()])
    if converted := to_single_precision(module):
        text = (
            "model: %d of %d tensors of %s are in half precision, where small updates are lost. They are converted to "
            "float32 for training and sampling"
        )
        _LOG.warning(text, converted, count, name)
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []), torch.no_grad(), in_eval_mode(module):
            faults = [Fault("model", f"{name} {text}") for text in _faults(module, device)]
            chunk = None if faults else _chunk(module, device, uses_states=uses_states)
    except (RuntimeError, TypeError, ValueError) as error:
        if not converted:
            raise
        text = (
            f"{name} has tensors in half precision ({converted} of {count}), which are converted to float32 so that "
            f"small updates are not lost, and its forward pass fails with them: {error}. Give all weights one dtype, "
            "and do not cast to a fixed one in `forward`"
        )
        raise ConfigError([Fault("model", text)]) from error
    if faults:
        raise ConfigError(faults)
    return chunk


def _faults(module: nn.Module, device: torch.device) -> Iterator[str]:
    texts = torch.tensor(_TEXTS, device=device)
    first = _logits(module, texts[:1])
    # Another thread may draw from the global generator during one pass.
    drawn = all(_draws(module, texts[:1], device) for _ in range(_TRIES))
    with torch.enable_grad():  # as the differentiated pass
        again = _difference(first, _logits(module, texts[:1]))
    if drawn or again > _REPEATED:
        found = "draws random numbers" if drawn else f"gives log-probabilities that differ by up to {again:.3g}"
        yield (
            f"{found} in two passes over the same tokens in evaluation mode, so that the policy would differ from "
            "itself in every update. Apply dropout and other noise only while `self.training` is True"
        )
        return
    if (mixed := _difference(first, _logits(module, texts)[:1])) > _IN_BATCH:
        yield (
            f"gives log-probabilities of a text that change by up to {mixed:.3g} with the other texts of its batch. Do "
            "not use statistics of the batch in evaluation mode; BatchNorm needs track_running_stats=True"
        )


def _chunk(module: nn.Module, device: torch.device, *, uses_states: bool) -> int | None:
    """Return the number of positions whose logits are computed at once; None if they are those of `forward`."""
    if not isinstance(module, Trunk):
        return None
    texts = torch.tensor(_TEXTS[:1], device=device)
    logits = _logits(module, texts)
    try:
        apart = _difference(logits, module.project(module.hidden(texts, None, states_to_keep=texts.shape[1])))
    except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
        if uses_states:
            raise
        text = f"fails in `project(hidden(tokens))`: {error}"
    else:
        if apart <= _IN_BATCH:
            return chunk_size(logits.shape[-1])
        text = (
            f"gives log-probabilities in `forward` that differ by up to {apart:.3g} from those of "
            "`project(hidden(tokens))`"
        )
    if uses_states:
        text = f"{text}, which a critic with use: value_head reads. Both must be the same policy"
        raise ConfigError([Fault("model", f"{type(module).__name__} {text}")])
    _LOG.warning("model: %s %s. Its logits of all positions are held in memory at once", type(module).__name__, text)
    return None


def _logits(module: nn.Module, tokens: Tensor) -> Tensor:
    return cast("Policy", module)(tokens, None, logits_to_keep=tokens.shape[1])


def _draws(module: nn.Module, tokens: Tensor, device: torch.device) -> bool:
    before = _random_state(device)
    _logits(module, tokens)
    return not torch.equal(before, _random_state(device))


def _difference(first: Tensor, second: Tensor) -> float:
    """Return the largest difference of a log-probability; one that is not a number in both does not count."""
    apart = log_policy(first.detach(), 1.0) - log_policy(second.detach(), 1.0)
    return float(apart.abs().nan_to_num(nan=0.0).amax())


def _random_state(device: torch.device) -> Tensor:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()
