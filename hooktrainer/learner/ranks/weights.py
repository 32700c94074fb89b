"""Comparison of the initial weights of the ranks, which would otherwise train different models."""

from __future__ import annotations

from hooktrainer.errors import RankError
from hooktrainer.learner.policy_gradient import PolicyGradientLearner
from hooktrainer.weight_sync.checksums import checksum


def weights_checksum(learner: PolicyGradientLearner) -> dict[str, int]:
    """Return the checksum of each tensor of all networks of a learner."""
    networks = learner.state_dict()["weights"]
    return {f"{name}.{key}": checksum(value) for name, own in networks.items() for key, value in own.items()}


def require_weights(learner: PolicyGradientLearner, expected: dict[str, int]) -> None:
    """Raise `RankError` unless the weights are those of rank 0."""
    found = weights_checksum(learner)
    if different := [name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name)]:
        raise RankError(
            f"its initial weights differ from those of rank 0 in {len(different)} tensors, first {min(different)}. "
            "Check that the files of the model are the same on every machine"
        )
