"""The state of a learner: a restored learner continues bit for bit."""

from __future__ import annotations

import copy
import logging
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from helpers.learners import GROUPS, build, drifted, learner, on_policy, values
from hooktrainer.errors import CheckpointError
from hooktrainer.learner.policy_gradient import PolicyGradientLearner

EVERYTHING = {
    "adv_estimator": "gae",
    "critic_use": "model",
    "critic_warmup_updates": 2,
    "kl_coeff": 0.1,
    "proximal_policy": "recompute",
    "iterations_per_step": 1,
    "lr_warmup": 5,
    "weight_decay": 0.1,
    "grad_clip": 0.5,
}
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "everything": EVERYTHING,
    "value head, two updates a step": {**EVERYTHING, "critic_use": "value_head", "iterations_per_step": 2},
    "by steps": {"lr_unit": "step", "lr_decay_start": 1, "lr_decay": 4, "proximal_policy": "log_linear"},
}


def train(made: PolicyGradientLearner, steps: range) -> list[dict[str, float]]:
    """Metrics of one update a step."""
    found = []
    for step in steps:
        made.start_step(step)
        found.append(values(made.update(drifted(on_policy(GROUPS, build()), seed=step))))
        made.kl_coeff *= 1.1 if made.kl_coeff else 1.0
    return found


def kept(state: Any) -> Any:
    """Convert a state as a checkpoint does, to arrays, mappings, lists, numbers and text."""
    if isinstance(state, dict):
        assert all(isinstance(key, str) for key in state)
        return {key: kept(value) for key, value in state.items()}
    if isinstance(state, list):
        return [kept(value) for value in state]
    assert isinstance(state, (Tensor, int, float, str))
    return state.detach().clone() if isinstance(state, Tensor) else state


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, max_examples=4)
@given(at=st.integers(0, 5))
def test_a_restored_learner_continues_bit_for_bit(kind: str, at: int) -> None:
    unbroken = learner(build(), **KINDS[kind])
    expected = train(unbroken, range(1, 7))

    first = learner(build(), **KINDS[kind])
    train(first, range(1, 1 + at))
    state = kept(first.state_dict())
    train(first, range(1, 3))  # must not change the state that was saved
    other = build(tied=False)
    torch.nn.init.normal_(other.head.weight)
    second = learner(other, **KINDS[kind])
    second.load_state_dict(state)
    found = train(second, range(1 + at, 7))

    assert found == expected[at:]
    assert_same(second.state_dict(), unbroken.state_dict())


def assert_same(one: Any, other: Any) -> None:
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key, value in one.items():
            assert_same(value, other[key])
    elif isinstance(one, Tensor):
        assert torch.equal(one, other)
    else:
        assert one == other


def test_load_state_dict_writes_into_the_existing_tensors() -> None:
    model = build()
    made = learner(model)
    held = made.weights()["head.weight"]
    state = copy.deepcopy(made.state_dict())
    state["weights"]["policy"]["head.weight"].fill_(7.0)
    made.load_state_dict(state)
    assert held.unique().tolist() == [7.0]


@pytest.mark.parametrize("missing", ["updates", "step", "kl_coeff"])
def test_incomplete_state_is_refused_and_changes_nothing(missing: str) -> None:
    made, other = learner(build()), learner(build())
    train(other, range(1, 2))
    state = other.state_dict()
    del state[missing]
    before = copy.deepcopy(made.state_dict())

    with pytest.raises(KeyError, match=missing):
        made.load_state_dict(state)

    assert_same(made.state_dict(), before)


def test_loaded_state_is_copied() -> None:
    made = learner(build())
    train(made, range(1, 2))
    state = copy.deepcopy(made.state_dict())
    made.load_state_dict(state)
    before = copy.deepcopy(made.state_dict())
    for tensor in (*state["weights"]["policy"].values(), *state["optimizers"]["actor"]["head.weight"].values()):
        tensor.fill_(9.0)
    assert_same(made.state_dict(), before)


class TestFaults:
    def test_a_state_of_another_model_is_refused_and_changes_nothing(self) -> None:
        made = learner(build())
        before = copy.deepcopy(made.state_dict())
        state = copy.deepcopy(before)
        state["weights"]["policy"]["head.weight"] = torch.zeros(2, 2)
        with pytest.raises(
            CheckpointError, match=r"its 'policy.head.weight' is \(2, 2\) float32, here \(7, 16\) float32"
        ):
            made.load_state_dict(state)
        assert_same(made.state_dict(), before)

    def test_state_with_a_critic_does_not_load_without_one_and_vice_versa(self) -> None:
        with_critic, without = learner(build(), **EVERYTHING), learner(build())
        with pytest.raises(CheckpointError, match="its 'reference.embedding.weight' is unknown here"):
            without.load_state_dict(with_critic.state_dict())
        with pytest.raises(CheckpointError, match="it has no 'reference.embedding.weight'"):
            with_critic.load_state_dict(without.state_dict())


class TestAnotherConfiguration:
    def test_a_changed_coefficient_is_restored_unless_it_is_configured_differently(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        first = learner(build(), kl_coeff=0.1)
        first.kl_coeff = 0.3
        same, other = learner(build(), kl_coeff=0.1), learner(build(), kl_coeff=0.5)
        with caplog.at_level(logging.INFO, logger="hooktrainer"):
            same.load_state_dict(first.state_dict())
            assert caplog.messages == []
            other.load_state_dict(first.state_dict())
        assert (same.kl_coeff, other.kl_coeff) == (0.3, 0.5)
        assert caplog.messages == [
            "algorithm.kl_coeff is 0.5 and was 0.1 when the checkpoint was saved: training resumes with 0.5, not 0.3"
        ]

    def test_parameters_that_were_not_trained_before_are_logged(self, caplog: pytest.LogCaptureFixture) -> None:
        model = build()
        model.head.weight.requires_grad_(requires_grad=False)
        first = learner(model)
        first.update(on_policy(GROUPS, model))
        with caplog.at_level(logging.WARNING, logger="hooktrainer"):
            learner(build()).load_state_dict(first.state_dict())
        (message,) = caplog.messages
        assert (
            message
            == "no optimizer state in the checkpoint for 1 trained parameters of the actor, which starts at zero: "
            "head.weight"
        )
