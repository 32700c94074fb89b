"""The learner: owns the weights that are trained, and updates them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from hooktrainer.ports.groups import Floats, Group, Tokens
from hooktrainer.ports.weight_sync import Weights


@runtime_checkable
class Learner(Protocol):
    """Owns the weights being trained."""

    skips_nonfinite: bool
    """Whether an update whose loss or gradient is not finite is left out and counted in `actor/skipped_updates`,
    instead of raising `NonFiniteError`; False unless a plugin sets it."""

    def start_step(self, step: int) -> None:
        """Called before the first update of a step: the weights of now are the proximal policy until the next call."""
        ...

    def update(self, groups: Sequence[Group]) -> Mapping[str, object]:
        """Make one optimizer update; returns metrics (numbers, lists, 0-d tensors or `Metric`s)."""
        ...

    def weights(self) -> Weights:
        """What engines get: all parameters and buffers by name, adapters merged into their base. Not a copy.

        A learner that trains other tensors than these, such as adapters, also has `trainable() -> Weights`: those that
        the optimizer changes. A sync that brings nothing new although they moved is refused.
        """
        ...

    def logprobs(self, tokens: Tokens) -> Floats:
        """Log-probability of each token given those before it, (L,) -> (L - 1,), at sampling temperature.

        The canary: engines have to say the same after each sync.
        """
        ...

    def state_dict(self) -> Mapping[str, object]:
        """All that the next update depends on: nested numbers, text, lists, dicts, tensors, arrays. Not a copy."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` gave. Raises `CheckpointError`, and changes nothing, if it is another model's."""
        ...


@runtime_checkable
class KLControl(Protocol):
    """Says how much the divergence from the reference model weighs."""

    kl_coeff: float
    """From the next update on; what is 0 at first stays 0, since there is no reference model then."""
