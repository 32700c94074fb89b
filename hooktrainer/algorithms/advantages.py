"""How much better an answer is than expected: one advantage an answer, from scores and groups.

Shapes: B answers. Groups may be ragged and interleaved; `groups` (B,) holds for each answer the number of its group,
counted from 0.
"""

from __future__ import annotations

import torch
from torch import Tensor


def grpo(scores: Tensor, groups: Tensor, *, epsilon: float = 1e-6) -> Tensor:
    """(score - mean) / (std + epsilon) within each group, std unbiased. Shapes (B,), (B,) -> (B,).

    A group of one, and one whose scores are all the same, has the advantage 0 exactly: rounding would give
    [0.1, 0.1, 0.1] a spread. Source: DeepSeekMath (2402.03300) §4.1, with the epsilon of verl.
    """
    count = len(scores)  # at least the number of groups, which would have to be fetched from the device
    sizes = scores.new_zeros(count).index_add(0, groups, torch.ones_like(scores))
    means = scores.new_zeros(count).index_add(0, groups, scores) / sizes
    centred = scores - means[groups]
    squares = scores.new_zeros(count).index_add(0, groups, centred**2)
    std = (squares / (sizes - 1).clamp(min=1)).sqrt()
    lowest = scores.new_zeros(count).scatter_reduce(0, groups, scores, "amin", include_self=False)
    highest = scores.new_zeros(count).scatter_reduce(0, groups, scores, "amax", include_self=False)
    flat = (lowest == highest)[groups]
    return torch.where(flat, torch.zeros_like(scores), centred / (std[groups] + epsilon))
