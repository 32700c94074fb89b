"""Answers with tokens that the policy did not sample, between the engine and the learner."""

from __future__ import annotations

import pickle

import attrs
import numpy as np
import pytest

from hooktrainer.ports import Batch, Example, Group, Prompt, Trajectory, validation_metrics
from hooktrainer.replay.ledger import Tally
from hooktrainer.replay.serialization import pack_groups, unpack_groups
from hooktrainer.rollout.workers.messages import GroupFinished


def answer(mask: list[int] | None, versions: list[int]) -> Trajectory:
    return Trajectory(
        tokens=np.arange(len(versions)),
        logprobs=np.zeros(len(versions), np.float32),
        score=1.0,
        versions=np.array(versions, dtype=np.int64),
        loss_mask=mask,
    )


def group(*answers: Trajectory) -> Group:
    return Group(number=0, stamp=1, prompt=Prompt(Example("q"), np.zeros(1, np.int64)), trajectories=answers)


MIXED = group(answer([1, 0, 1], [2, 2, 3]), answer(None, [2, 2]), answer([0, 0], [2, 2]), answer([], []))
PLAIN = group(answer(None, [2, 2]), answer(None, []))


def masks(each: Group) -> list[list[bool] | None]:
    return [None if one.loss_mask is None else one.loss_mask.tolist() for one in each.trajectories]


def test_loss_mask_survives_a_checkpoint() -> None:
    (found,) = unpack_groups(pack_groups([MIXED]))
    assert masks(found) == [[True, False, True], None, [False, False], None]
    assert [one.length for one in found.trajectories] == [one.length for one in MIXED.trajectories]


def test_checkpoint_of_answers_without_a_mask_is_as_before_and_can_be_read() -> None:
    packed = pack_groups([PLAIN])
    assert not [key for key in packed if "mask" in key]
    assert masks(unpack_groups(packed)[0]) == [None, None]
    assert unpack_groups(pack_groups([])) == []


def test_loss_mask_survives_a_message_of_a_worker_process() -> None:
    sent = GroupFinished(0, MIXED.trajectories, {}, (), (), 0.0)
    found = pickle.loads(pickle.dumps(sent)).trajectories
    assert masks(attrs.evolve(MIXED, trajectories=found)) == masks(MIXED)


@pytest.mark.parametrize(
    ("mask", "versions", "span"),
    [
        (None, [2, 2, 4], 3),
        ([1, 1, 0], [2, 2, 4], 1),
        ([0, 1, 0], [-1, 3, -1], 1),
        ([1, 0, 1], [2, 9, 3], 2),
        ([0, 0, 0], [1, 5, 9], 1),
    ],
)
def test_span_is_that_of_sampled_tokens(mask: list[int] | None, versions: list[int], span: int) -> None:
    one = answer(mask, versions)
    assert one.span == span
    assert group(one).in_flight == span - 1
    assert Batch(groups=(group(one),)).ages(1, 0, 1)["spans"] == (span,)


def test_ledger_and_validation_count_sampled_tokens() -> None:
    tally = Tally()
    tally.add(MIXED)
    assert tally.tokens == MIXED.num_tokens == 4
    answers = MIXED.trajectories
    metrics = validation_metrics([MIXED.prompt] * len(answers), answers)
    assert metrics["val/response_length/mean"].value == 1.0
