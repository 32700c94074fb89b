"""Sums over the processes that share one mini-batch. Each process has whole groups of it; by default there is one."""

from __future__ import annotations

import pickle
from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

import attrs
import torch
from torch import Tensor

from hooktrainer.algorithms.aggregation import Totals
from hooktrainer.algorithms.masking import Reduce, on_one_rank
from hooktrainer.metrics import Metric, merge

K = TypeVar("K", bound=Hashable)


@attrs.frozen
class Communicator:
    """Reductions over all ranks. Every rank calls the same ones in the same order, also if it has no group."""

    sum: Reduce = on_one_rank
    """Returns the sum of a tensor over all ranks."""
    rank: int = 0
    size: int = 1
    """Number of ranks."""

    def totals(self, lengths: Sequence[int], groups: Sequence[int], num_groups: int) -> tuple[Totals, int]:
        """Return the totals of all ranks, and the index of this rank's first group among the groups of all ranks.

        `lengths` (B,) are the tokens of each answer, `groups` (B,) the indices of their groups on this rank.
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

    def any(self, condition: bool) -> bool:
        """Return whether a condition holds on any rank."""
        return condition if self.size == 1 else bool(self.sum(torch.tensor([int(condition)])))

    def sum_all(self, values: Mapping[K, Tensor]) -> dict[K, Tensor]:
        """Sum scalars over all ranks, in one reduction."""
        if self.size == 1 or not values:
            return dict(values)
        keys = sorted(values, key=str)
        return dict(zip(keys, self.sum(torch.stack([values[key] for key in keys])).unbind(), strict=True))

    def gather(self, values: Mapping[K, Tensor]) -> dict[K, Tensor]:
        """Return the scalars of all ranks, by rank, in one reduction. Shapes () -> (size,)."""
        if not values:
            return {}
        keys = sorted(values, key=str)
        own = torch.stack([values[key] for key in keys])
        by_rank = own.new_zeros((self.size, len(keys)))
        by_rank[self.rank] = own
        return dict(zip(keys, self.sum(by_rank).unbind(dim=1), strict=True))

    def merge(self, metrics: Mapping[str, Metric]) -> dict[str, Metric]:
        """Merge the metrics of all ranks, in two reductions. A rank may have metrics that others do not have."""
        if self.size == 1:
            return dict(metrics)
        packed = torch.frombuffer(bytearray(pickle.dumps(dict(metrics))), dtype=torch.uint8)
        sizes = torch.zeros(self.size, dtype=torch.int64)
        sizes[self.rank] = len(packed)
        sizes = self.sum(sizes)
        texts = torch.zeros((self.size, int(sizes.max())), dtype=torch.int64)
        texts[self.rank, : len(packed)] = packed
        merged: dict[str, Metric] = {}
        for text, size in zip(self.sum(texts), sizes.tolist(), strict=True):
            for key, metric in pickle.loads(bytes(text[:size].tolist())).items():  # noqa: S301 (of this run)
                merged[key] = merge(merged[key], metric) if key in merged else metric
        return merged

    def sum_gradients(self, parameters: Sequence[Tensor]) -> None:
        """Replace the gradients by their sums over all ranks, in one reduction."""
        if self.size == 1:
            return
        flat = [(p.grad if p.grad is not None else torch.zeros_like(p)).reshape(-1) for p in parameters]
        summed = self.sum(torch.cat(flat))
        parts = torch.split(summed, [p.numel() for p in parameters])
        for parameter, part in zip(parameters, parts, strict=True):
            parameter.grad = part.reshape(parameter.shape).clone()
