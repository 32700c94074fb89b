"""Decode batches: answers end independently, with the log-probabilities of the model."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np
import pytest
import torch
from torch import Tensor

from hooktrainer.ports import Example, Prompt
from hooktrainer.rollout.decode_batch import DecodeBatch, Request
from hooktrainer.rollout.options import SamplingOptions
from hooktrainer.weight_sync.torn_reads import Fingerprint

EOS = 1
PROMPT = Prompt(Example("23"), np.array([2, 3]))


@attrs.define
class Scripted:
    """A model with the same probabilities at every position, which records its inputs."""

    probabilities: Sequence[float]
    read: list[list[list[int]]] = attrs.field(factory=list)
    lengths: list[int] = attrs.field(factory=list)

    def new_cache(self, rows: int, length: int) -> Scripted:
        return self

    def append(self, other: Scripted, rows: Sequence[int]) -> None:
        self.read.append([["copies", *rows]])

    def keep(self, rows: Sequence[int]) -> None:
        self.read.append([["keeps", *rows]])

    def prefill(self, tokens: Tensor, lengths: Sequence[int], cache: object) -> Tensor:
        self.read.append([row[:length] for row, length in zip(tokens.tolist(), lengths, strict=True)])
        return torch.log(torch.tensor(self.probabilities)).expand(len(tokens), -1)

    def decode(self, tokens: Tensor, cache: object) -> Tensor:
        self.read.append([tokens.tolist()])
        return torch.log(torch.tensor(self.probabilities)).expand(len(tokens), -1)


def batch(model: Scripted, longest: int = 3) -> DecodeBatch:
    options = SamplingOptions(max_response_length=longest)
    return DecodeBatch(
        model,
        7,
        options=options,
        eos_ids=frozenset({EOS}),
        device=torch.device("cpu"),
        slots=8,
        length=8,
        fingerprint=lambda: Fingerprint(7, 0, 0),
    )


def requests(*draws: list[float]) -> list[Request]:
    return [Request(PROMPT, 0, np.array(own)) for own in draws]


def test_answer_ends_at_the_end_token_or_the_maximum_length() -> None:
    made = batch(Scripted([0.1, 0.2, 0.3, 0.4]))
    first, second = requests([0.05, 0.95, 0.5], [0.15, 0.0, 0.0])
    made.admit([first, second])

    left = [[request is first for request in made.step()] for _ in range(3)]

    assert left == [[False], [], [True]]
    assert (first.tokens, first.ended) == ([0, 3, 2], False)
    assert (second.tokens, second.ended) == ([EOS], True)
    np.testing.assert_allclose(np.exp(first.logprobs), [0.1, 0.4, 0.3], rtol=1e-6)
    assert first.versions == [7, 7, 7]
    assert made.rows == []


def test_prompt_is_prefilled_once_and_freed_rows_are_filled_from_the_end() -> None:
    model = Scripted([0.0, 0.5, 0.0, 0.5])
    made = batch(model)
    made.admit(requests([0.1], [0.9, 0.1], [0.1], [0.9, 0.1]))

    made.step()

    assert model.read == [[[2, 3]], [["copies", 0, 0, 0, 0]], [["keeps", 3, 1]], [[3, 3]]]


def test_a_partial_answer_from_another_batch_is_continued() -> None:
    model = Scripted([0.0, 0.5, 0.0, 0.5])
    made = batch(model)
    begun = Request(PROMPT, 0, np.array([0.9, 0.9, 0.1]), tokens=[3], logprobs=[-0.5], versions=[6])
    made.admit([begun, *requests([0.1])])

    while made.rows:
        made.step()

    assert model.read[0] == [[2, 3, 3], [2, 3]]
    assert (begun.tokens, begun.versions) == ([3, 3, EOS], [6, 7, 7])
    assert begun.logprobs == pytest.approx([-0.5, np.log(0.5), np.log(0.5)])
