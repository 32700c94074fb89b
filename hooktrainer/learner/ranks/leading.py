"""The learner of rank 0, which sends each of its calls to the other ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hooktrainer.learner.policy_gradient import PolicyGradientLearner
from hooktrainer.learner.ranks.shares import split_by_tokens, without_rows
from hooktrainer.learner.ranks.weights import weights_checksum
from hooktrainer.ports import Floats, Group, Tokens

if TYPE_CHECKING:
    from hooktrainer.learner.ranks.followers import Followers
    from hooktrainer.ports import Weights


class LeadingLearner:
    """The learner of a run on several ranks. All of them hold the same weights, and train on a share of each update.

    Weights, state and log-probabilities are read from rank 0 alone.
    """

    def __init__(self, own: PolicyGradientLearner, followers: Followers) -> None:
        self._own, self._followers = own, followers
        followers.call("require_weights", weights_checksum(own))

    def start_step(self, step: int) -> None:
        """Make the current weights the proximal policy until the next call, on all ranks."""
        self._followers.call("start_step", step)
        self._own.start_step(step)

    def update(self, groups: Sequence[Group]) -> Mapping[str, object]:
        """Make the updates of one mini-batch on all ranks, each with whole groups of it; return the joint metrics."""
        own, *others = split_by_tokens(groups, self._followers.size)
        self._followers.call_each("update", [([without_rows(group) for group in share],) for share in others])
        with self._followers.collective():
            return self._own.update(own)

    def weights(self) -> Weights:
        """Return the weights for engines."""
        return self._own.weights()

    def trainable(self) -> Weights:
        """Return the parameters of the policy that the optimizer changes."""
        return self._own.trainable()

    def logprobs(self, tokens: Tokens) -> Floats:
        """Return the log-probability of each token given those before it, (L,) -> (L - 1,)."""
        return self._own.logprobs(tokens)

    def state_dict(self) -> Mapping[str, object]:
        """Return the state of training, which does not depend on the number of ranks."""
        return self._own.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state on all ranks. Raises `CheckpointError`, and changes nothing, if it is of another model."""
        self._own.load_state_dict(state)
        self._followers.call("load_state_dict", state)

    @property
    def skips_nonfinite(self) -> bool:
        """Whether an update whose loss or gradient is not finite is skipped and counted, instead of raised."""
        return self._own.skips_nonfinite

    @skips_nonfinite.setter
    def skips_nonfinite(self, skips: bool) -> None:
        self._followers.set("skips_nonfinite", skips)
        self._own.skips_nonfinite = skips

    @property
    def kl_coeff(self) -> float:
        """Weight of the divergence from the reference model."""
        return self._own.kl_coeff

    @kl_coeff.setter
    def kl_coeff(self, coefficient: float) -> None:
        self._followers.set("kl_coeff", coefficient)
        self._own.kl_coeff = coefficient
