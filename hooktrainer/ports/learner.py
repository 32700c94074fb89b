"""Port of the learner, which owns the trained weights and updates them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from hooktrainer.ports.groups import Floats, Group, Tokens
from hooktrainer.ports.weight_sync import Weights


@runtime_checkable
class Learner(Protocol):
    """Owns the weights that are trained.

    A learner may also implement `SupportsLogprobs`, `SupportsSkipping`, `SupportsTrainable` and `KLControl`.
    """

    def start_step(self, step: int) -> None:
        """Prepare the updates of a step; the current weights are its proximal policy."""
        ...

    def update(self, groups: Sequence[Group]) -> Mapping[str, object]:
        """Make one optimizer update; return metrics (numbers, lists, 0-d tensors or `Metric`s)."""
        ...

    def weights(self) -> Weights:
        """Return the weights for engines: all parameters and buffers by name, adapters merged. They are not copied.

        A learner that computes some of them returns a `WeightSource`.
        """
        ...

    def state_dict(self) -> Mapping[str, object]:
        """Return all state of training: nested numbers, text, lists, dicts, tensors, arrays. It is not copied."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state returned by `state_dict()`.

        Raises `CheckpointError`, and changes nothing, if the state belongs to another model.
        """
        ...


@runtime_checkable
class SupportsLogprobs(Protocol):
    """A learner that scores a text, so that weight sync can compare engines with it."""

    def logprobs(self, tokens: Tokens) -> Floats:
        """Return the log-probability of each token given the tokens before it, (L,) -> (L - 1,).

        Use the sampling temperature.
        """
        ...


@runtime_checkable
class SupportsSkipping(Protocol):
    """A learner that can skip an update whose loss or gradient is not finite."""

    skips_nonfinite: bool
    """Whether such an update is skipped and counted in `actor/skipped_updates`. Otherwise it raises `NonFiniteError`.

    False unless a plugin sets it."""


@runtime_checkable
class SupportsTrainable(Protocol):
    """A learner that trains other tensors than it publishes, such as adapters that are merged into their base."""

    def trainable(self) -> Weights:
        """Return the tensors that the optimizer changes, by name. They are not copied.

        Weight sync raises an error if they changed and the published weights did not.
        """
        ...


@runtime_checkable
class KLControl(Protocol):
    """Coefficient of the KL divergence from the reference model."""

    kl_coeff: float
    """Coefficient of the next update. If it is 0 at the start, there is no reference model and it must stay 0."""
