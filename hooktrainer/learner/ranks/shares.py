"""The share of a mini-batch that each rank trains on."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from hooktrainer.ports import Example, Group


def split_by_tokens(groups: Sequence[Group], ranks: int) -> list[list[Group]]:
    """Return the groups of each rank: the largest group first, each to the rank with the fewest tokens so far.

    Groups stay whole, since their answers are compared, and keep their order. With fewer groups than ranks, some have
    none.
    """
    sizes = [_num_tokens(group) for group in groups]
    loads, shares = [0] * ranks, [list[int]() for _ in range(ranks)]
    for index in sorted(range(len(groups)), key=lambda index: -sizes[index]):
        rank = loads.index(min(loads))
        loads[rank] += sizes[index]
        shares[rank].append(index)
    return [[groups[index] for index in sorted(share)] for share in shares]


def without_rows(group: Group) -> Group:
    """Return a group without the row of its example and the texts of its answers, which no learner reads."""
    example = Example("", number=group.prompt.example.number, source=group.prompt.example.source)
    answers = tuple(attrs.evolve(answer, text="") for answer in group.trajectories)
    return attrs.evolve(group, prompt=attrs.evolve(group.prompt, example=example), trajectories=answers)


def _num_tokens(group: Group) -> int:
    """Return the tokens that the learner computes: the prompt is repeated for each answer."""
    return sum(len(group.prompt.tokens) + len(answer.tokens) for answer in group.trajectories)
