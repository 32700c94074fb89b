"""The processes that share one mini-batch, each with whole groups of it; by default this one alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs
import torch
from torch import Tensor

from hooktrainer.algorithms.aggregation import Totals
from hooktrainer.algorithms.masking import Reduce, on_one_rank


@attrs.frozen
class Ranks:
    """Every rank calls the same reductions in the same order, one without a group too."""

    sum: Reduce = on_one_rank
    """Adds a tensor up over all ranks."""
    rank: int = 0
    size: int = 1

    def totals(self, lengths: Sequence[int], groups: Sequence[int], num_groups: int) -> tuple[Totals, int]:
        """What all ranks count, and the number of this rank's first group among all.

        `lengths` (B,) are the tokens of each answer, `groups` (B,) the places of their groups among this rank's.
        """
        tokens = [0] * num_groups
        for group, length in zip(groups, lengths, strict=True):
            tokens[group] += length
        sequences = sum(length > 0 for length in lengths)
        if self.size == 1:
            return Totals(sum(tokens), sequences, tuple(tokens)), 0
        counts = torch.zeros(self.size, dtype=torch.int64)
        counts[self.rank] = num_groups
        groups_before = [0, *torch.cumsum(self.sum(counts), 0).tolist()]
        first = groups_before[self.rank]
        summed = torch.zeros(2 + groups_before[-1], dtype=torch.int64)
        summed[:2] = torch.tensor([sum(tokens), sequences])
        summed[2 + first : 2 + first + num_groups] = torch.tensor(tokens, dtype=torch.int64)
        all_tokens, all_sequences, *of_prompts = self.sum(summed).tolist()
        return Totals(all_tokens, all_sequences, tuple(of_prompts)), first

    def any(self, here: bool) -> bool:
        """Whether something holds on any rank."""
        return here if self.size == 1 else bool(self.sum(torch.tensor([int(here)])))

    def add_up(self, sums: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Scalars, each summed over all ranks, in one reduction."""
        if self.size == 1 or not sums:
            return dict(sums)
        stacked = self.sum(torch.stack([sums[key] for key in sorted(sums)]))
        return dict(zip(sorted(sums), stacked.unbind(), strict=True))

    def add_up_gradients(self, parameters: Sequence[Tensor]) -> None:
        """Replace the gradients by their sums over all ranks, in one reduction."""
        if self.size == 1:
            return
        flat = [(p.grad if p.grad is not None else torch.zeros_like(p)).reshape(-1) for p in parameters]
        summed = self.sum(torch.cat(flat))
        parts = torch.split(summed, [p.numel() for p in parameters])
        for parameter, part in zip(parameters, parts, strict=True):
            parameter.grad = part.reshape(parameter.shape).clone()
