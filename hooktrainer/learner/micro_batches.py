"""Micro-batches: parts of a batch for one forward and backward pass each. A split changes results by rounding only."""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hooktrainer.learner.batch import PaddedBatch


@attrs.frozen(eq=False)
class MicroBatch:
    """Some answers of a batch, padded to the longest of them up to its last token that is trained on."""

    rows: slice | Tensor
    """The answers: a slice, or their indices, shape (b,)."""
    width: int
    """Response tokens of the longest answer up to its last token that is trained on, t."""
    part: PaddedBatch
    """The data of these answers."""

    def select(self, values: Tensor) -> Tensor:
        """Return the values of these answers, (B, T) -> (b, t)."""
        return values[self.rows, : self.width]

    def write(self, values: Tensor, into: Tensor) -> None:
        """Write values (b, t) of these answers into a tensor (B, T) of the whole batch."""
        into[self.rows, : self.width] = values


def split(batch: PaddedBatch, *, size: int | None, tokens: int | None) -> list[MicroBatch]:
    """Split by number of answers, or by tokens with padding, sorted by length; do not split if neither is given.

    Parts without a token to train on are left out. If all are, one of them remains: its loss of 0 has the statistics
    and the gradients that the losses of other ranks have.
    """
    if tokens is not None:
        selections: Iterator[NDArray[np.int64] | slice] = _by_tokens(batch, tokens)
    else:
        step = size or max(len(batch.tokens), 1)
        selections = (slice(start, start + step) for start in range(0, len(batch.tokens), step))
    parts = [_micro_batch(batch, rows) for rows in selections if batch.lengths[rows].any()]
    return parts or [_micro_batch(batch, slice(0, 1))]


def _by_tokens(batch: PaddedBatch, limit: int) -> Iterator[NDArray[np.int64]]:
    """Yield indices of answers, the longest ones first."""
    first, prompt, response = 0, 0, 0
    order = np.lexsort((batch.prompt_lengths, batch.widths, batch.prompt_lengths + batch.widths))[::-1].copy()
    for place, row in enumerate(order):
        prompt_with, response_with = max(prompt, batch.prompt_lengths[row]), max(response, batch.widths[row])
        if place > first and (place - first + 1) * (prompt_with + response_with) > limit:
            yield order[first:place]
            first, prompt_with, response_with = place, batch.prompt_lengths[row], batch.widths[row]
        prompt, response = prompt_with, response_with
    if len(order):
        yield order[first:]


def _micro_batch(batch: PaddedBatch, selection: NDArray[np.int64] | slice) -> MicroBatch:
    prompts = batch.prompt_lengths[selection]
    widest = int(batch.prompt_lengths.max(initial=1))
    prompt, response = int(prompts.max(initial=1)), int(batch.widths[selection].max(initial=1))
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
        widths=batch.widths[selection],
    )
    return MicroBatch(rows, response, part)
