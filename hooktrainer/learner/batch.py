"""The padded tensors of one update.

Prompts end and responses begin at one column: prompts are padded on the left, responses on the right.
Shapes: B answers, Q prompt tokens, T response tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Self

import attrs
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hooktrainer.ports import Example, Group, Prompt, Tokens, Trajectory


@attrs.frozen(eq=False)
class PaddedBatch:
    """Answers of all groups, one per row."""

    tokens: Tensor
    """Shape (B, Q + T)."""
    left_pad: Tensor | None
    """Padding before each prompt, shape (B,); None if there is none."""
    responses: Tensor
    """Shape (B, T)."""
    mask: Tensor
    """True for response tokens that are trained on, shape (B, T)."""
    behaviour: Tensor
    """Log-probabilities of the sampler, shape (B, T); NaN where no token was sampled, to expose accidental use."""
    versions: Tensor
    """Version that each token was sampled from; -1 where none was, shape (B, T)."""
    scores: Tensor
    """Scores of answers in float64, shape (B,). They remain on the host, like all data per answer."""
    groups: NDArray[np.int64]
    """Index of the group of each answer, shape (B,)."""
    prompt_lengths: NDArray[np.int64]
    """Number of prompt tokens of each answer, shape (B,)."""
    response_lengths: NDArray[np.int64]
    """Number of tokens of each answer that the policy sampled, shape (B,)."""
    lengths: NDArray[np.int64]
    """Number of response tokens that are trained on, shape (B,)."""
    widths: NDArray[np.int64]
    """Number of response tokens up to the last one that is trained on, shape (B,)."""

    @classmethod
    def of(
        cls,
        groups: Sequence[Group],
        *,
        pad_id: int,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
        leaves_out_truncated: bool = False,
    ) -> Self:
        """Pad the answers of these groups and move them to the device; without a group, one answer without tokens.

        With `leaves_out_truncated`, no token of a truncated answer is trained on; its score still counts.
        """
        groups = groups or [_without_tokens(pad_id)]
        rows = [(group.prompt.tokens, trajectory) for group in groups for trajectory in group.trajectories]
        prompt_lengths = np.array([len(prompt) for prompt, _ in rows], dtype=np.int64)
        masks = _Masks.of([trajectory for _, trajectory in rows], leaves_out_truncated=leaves_out_truncated)
        prompt_width, response_width = int(prompt_lengths.max(initial=1)), masks.mask.shape[1]
        tokens, behaviour, versions = _padded(rows, prompt_width, response_width, pad_id)
        left_pad = prompt_width - prompt_lengths
        scores = np.array([trajectory.score for _, trajectory in rows], dtype=np.float64)

        moved = partial(_moved, device=device)
        return cls(
            tokens=moved(tokens),
            left_pad=moved(left_pad) if left_pad.any() else None,
            responses=moved(tokens[:, prompt_width:]),
            mask=moved(masks.mask),
            behaviour=moved(behaviour).to(dtype),
            versions=moved(versions),
            scores=torch.from_numpy(scores),
            groups=np.repeat(np.arange(len(groups)), [len(group.trajectories) for group in groups]),
            prompt_lengths=prompt_lengths,
            response_lengths=masks.response_lengths,
            lengths=masks.lengths,
            widths=masks.widths,
        )


def _moved(array: NDArray[np.generic], *, device: torch.device) -> Tensor:
    """Return a tensor on the device. From pinned memory, the transfer does not wait for a GPU."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


@attrs.frozen(eq=False)
class _Masks:
    """The fields of a `PaddedBatch` that depend on the loss masks of its answers."""

    mask: NDArray[np.bool_]
    response_lengths: NDArray[np.int64]
    lengths: NDArray[np.int64]
    widths: NDArray[np.int64]

    @classmethod
    def of(cls, trajectories: Sequence[Trajectory], *, leaves_out_truncated: bool) -> Self:
        num_tokens = np.array([len(trajectory.tokens) for trajectory in trajectories], dtype=np.int64)
        left_out = [leaves_out_truncated and trajectory.truncated for trajectory in trajectories]
        widths = np.where(left_out, 0, num_tokens)
        mask = np.arange(num_tokens.max(initial=1)) < widths[:, None]
        masks = [(row, each.loss_mask) for row, each in enumerate(trajectories) if each.loss_mask is not None]
        if not masks:
            return cls(mask, num_tokens, widths, widths)
        response_lengths, lengths = num_tokens.copy(), widths.copy()
        for row, sampled in masks:
            mask[row, : len(sampled)] &= sampled
            response_lengths[row], lengths[row] = sampled.sum(), mask[row].sum()
            widths[row] = np.flatnonzero(mask[row]).max(initial=-1) + 1
        return cls(mask, response_lengths, lengths, widths)


def _padded(
    rows: Sequence[tuple[Tokens, Trajectory]], prompt_width: int, response_width: int, pad_id: int
) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.int64]]:
    """Return tokens (B, Q + T), behaviour log-probabilities (B, T) and versions (B, T)."""
    tokens = np.full((len(rows), prompt_width + response_width), pad_id, dtype=np.int64)
    behaviour = np.full((len(rows), response_width), np.nan, dtype=np.float32)
    versions = np.full((len(rows), response_width), -1, dtype=np.int64)
    for row, (prompt, trajectory) in enumerate(rows):
        length = len(trajectory.tokens)
        tokens[row, prompt_width - len(prompt) : prompt_width] = prompt
        tokens[row, prompt_width : prompt_width + length] = trajectory.tokens
        sampled = slice(0, length) if trajectory.loss_mask is None else np.flatnonzero(trajectory.loss_mask)
        behaviour[row, sampled] = trajectory.logprobs[sampled]
        versions[row, sampled] = trajectory.versions[sampled]
    return tokens, behaviour, versions


def _without_tokens(pad_id: int) -> Group:
    nothing = np.empty(0, dtype=np.int64)
    answer = Trajectory(tokens=nothing, logprobs=nothing.astype(np.float32), score=0.0, versions=nothing)
    return Group(number=-1, stamp=0, prompt=Prompt(Example(""), np.array([pad_id])), trajectories=(answer,))
