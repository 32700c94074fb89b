"""The padded tensors of one update.

Prompts end and responses begin at one column: prompts are padded on the left, responses on the right.
Shapes: B answers, Q prompt tokens, T response tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs
import numpy as np
import torch
from torch import Tensor

from hooktrainer.groups import Group


@attrs.frozen(eq=False)
class PaddedBatch:
    """Answers of all groups, one a row."""

    tokens: Tensor
    """Shape (B, Q + T)."""
    left_pad: Tensor | None
    """Padding before each prompt, shape (B,); None if there is none."""
    responses: Tensor
    """Shape (B, T)."""
    mask: Tensor
    """True on response tokens, shape (B, T)."""
    behaviour: Tensor
    """The sampler's log-probabilities; NaN where the mask is False, so that no use of them goes unnoticed. (B, T)."""
    scores: Tensor
    """Shape (B,)."""
    groups: Tensor
    """Place of each answer's group, shape (B,)."""

    @classmethod
    def of(cls, groups: Sequence[Group], *, pad_id: int, device: torch.device) -> PaddedBatch:
        """Pad and move the answers of these groups."""
        rows = [(group, trajectory) for group in groups for trajectory in group.trajectories]
        prompt_width = max((len(group.prompt.tokens) for group in groups), default=0)
        response_width = max((len(trajectory.tokens) for _, trajectory in rows), default=0)
        tokens = np.full((len(rows), prompt_width + response_width), pad_id, dtype=np.int64)
        behaviour = np.full((len(rows), response_width), np.nan, dtype=np.float32)
        for row, (group, trajectory) in enumerate(rows):
            prompt, response = group.prompt.tokens, trajectory.tokens
            tokens[row, prompt_width - len(prompt) : prompt_width] = prompt
            tokens[row, prompt_width : prompt_width + len(response)] = response
            behaviour[row, : len(response)] = trajectory.logprobs
        lengths = np.array([len(trajectory.tokens) for _, trajectory in rows], dtype=np.int64)
        left_pad = np.array([prompt_width - len(group.prompt.tokens) for group, _ in rows], dtype=np.int64)
        place = np.repeat(np.arange(len(groups)), [len(group.trajectories) for group in groups])
        scores = np.array([trajectory.score for _, trajectory in rows], dtype=np.float32)

        def moved(array: np.ndarray) -> Tensor:
            return torch.from_numpy(array).to(device)

        return cls(
            tokens=moved(tokens),
            left_pad=moved(left_pad) if left_pad.any() else None,
            responses=moved(tokens[:, prompt_width:]),
            mask=moved(np.arange(response_width) < lengths[:, None]),
            behaviour=moved(behaviour),
            scores=moved(scores),
            groups=moved(place),
        )

    def split(self, rows: int) -> Iterator[PaddedBatch]:
        """Parts of at most `rows` answers, in order."""
        for start in range(0, len(self.tokens), rows):
            part = slice(start, start + rows)
            yield PaddedBatch(
                tokens=self.tokens[part],
                left_pad=None if self.left_pad is None else self.left_pad[part],
                responses=self.responses[part],
                mask=self.mask[part],
                behaviour=self.behaviour[part],
                scores=self.scores[part],
                groups=self.groups[part],
            )
