"""Parts of a batch that are worked through one after the other; no cut changes a number, but for rounding."""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hooktrainer.learner.batch import PaddedBatch


@attrs.frozen(eq=False)
class Cut:
    """Some answers of a batch, no wider than the longest of them."""

    rows: slice | Tensor
    """Which answers: a slice, or their places, shape (b,)."""
    width: int
    """Response tokens of the longest, t."""
    part: PaddedBatch
    """The answers themselves."""

    def of(self, values: Tensor) -> Tensor:
        """What belongs to these answers, (B, T) -> (b, t)."""
        return values[self.rows, : self.width]

    def put(self, into: Tensor, values: Tensor) -> None:
        """Write what belongs to these answers in its place, (b, t) into (B, T)."""
        into[self.rows, : self.width] = values


def cuts(batch: PaddedBatch, *, size: int | None, tokens: int | None) -> list[Cut]:
    """Cut by number of answers, or by tokens with padding, sorted by length; at once if neither is given.

    Parts without a token to train on are left out, but for one if there are no others: its loss of 0 has every key and
    every gradient that the loss of another rank has.
    """
    if tokens is not None:
        selections: Iterator[NDArray[np.int64] | slice] = _by_tokens(batch, tokens)
    else:
        step = size or max(len(batch.tokens), 1)
        selections = (slice(start, start + step) for start in range(0, len(batch.tokens), step))
    made = [_cut(batch, rows) for rows in selections if batch.lengths[rows].any()]
    return made or [_cut(batch, slice(0, 1))]


def _by_tokens(batch: PaddedBatch, limit: int) -> Iterator[NDArray[np.int64]]:
    """Places of answers, the longest ones first."""
    first, prompt, response = 0, 0, 0
    order = np.lexsort((batch.prompt_lengths, batch.lengths, batch.prompt_lengths + batch.lengths))[::-1].copy()
    for place, row in enumerate(order):
        prompt_with, response_with = max(prompt, batch.prompt_lengths[row]), max(response, batch.lengths[row])
        if place > first and (place - first + 1) * (prompt_with + response_with) > limit:
            yield order[first:place]
            first, prompt_with, response_with = place, batch.prompt_lengths[row], batch.lengths[row]
        prompt, response = prompt_with, response_with
    if len(order):
        yield order[first:]


def _cut(batch: PaddedBatch, selection: NDArray[np.int64] | slice) -> Cut:
    prompts = batch.prompt_lengths[selection]
    widest = int(batch.prompt_lengths.max(initial=1))
    prompt, response = int(prompts.max(initial=1)), int(batch.lengths[selection].max(initial=1))
    rows = selection if isinstance(selection, slice) else torch.from_numpy(selection).to(batch.tokens.device)
    columns = slice(0, response)
    part = PaddedBatch(
        tokens=batch.tokens[rows, widest - prompt : widest + response],
        left_pad=batch.left_pad[rows] - (widest - prompt)
        if batch.left_pad is not None and (prompts < prompt).any()
        else None,
        responses=batch.responses[rows, columns],
        mask=batch.mask[rows, columns],
        behaviour=batch.behaviour[rows, columns],
        versions=batch.versions[rows, columns],
        scores=batch.scores[selection],
        groups=batch.groups[selection],
        prompt_lengths=prompts,
        response_lengths=batch.response_lengths[selection],
        lengths=batch.lengths[selection],
    )
    return Cut(rows, response, part)
