"""Small tensors of tokens: written by hand, and ragged random ones with NaN wherever the mask is False."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor

from hooktrainer.algorithms.aggregation import Totals

HIDDEN = None
"""A masked position: NaN in inputs, 0 in results."""
TOLERANCE = {torch.float64: {"rtol": 1e-7, "atol": 1e-9}, torch.float32: {"rtol": 5e-6, "atol": 1e-6}}


def tensor(values: Sequence[Any], dtype: torch.dtype = torch.float64, hidden: float = math.nan) -> Tensor:
    """Return a tensor of one row or several; masked positions are NaN."""
    return torch.tensor(_filled(values, hidden), dtype=dtype)


def bools(values: Sequence[Any]) -> Tensor:
    return torch.tensor(values, dtype=torch.bool)


def ints(values: Sequence[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)


def assert_vector(found: Tensor, expected: Sequence[Any]) -> None:
    """Compare with numbers of nine digits, within the precision of the dtype; masked positions are 0."""
    torch.testing.assert_close(found.detach(), tensor(expected, found.dtype, hidden=0.0), **TOLERANCE[found.dtype])


def slope(function: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    """Return the gradient of the sum of a function."""
    leaf = at.clone().requires_grad_()
    function(leaf).sum().backward()
    assert leaf.grad is not None
    return leaf.grad


def _filled(values: Any, hidden: float) -> Any:
    if values is HIDDEN:
        return hidden
    return [_filled(value, hidden) for value in values] if isinstance(values, (list, tuple)) else values


@attrs.frozen(eq=False)
class Ragged:
    """Random answers with gaps and empty rows; every (B, T) tensor is NaN where the mask is False."""

    mask: Tensor
    groups: Tensor
    rewards: Tensor
    logprobs: Tensor
    proximal: Tensor
    behaviour: Tensor
    advantages: Tensor

    @classmethod
    def of(cls, seed: int, *, rows: int = 7, width: int = 6, spread: float = 0.4) -> Ragged:
        random = torch.Generator().manual_seed(seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=random, dtype=torch.float64)

        mask = torch.rand(rows, width, generator=random) < 0.7
        mask[seed % rows] = False
        mask[(seed + 1) % rows, 0] = mask[(seed + 2) % rows, width - 1] = True  # at least two tokens
        behaviour = -1.5 + 0.5 * normal(rows, width)
        proximal = behaviour + spread * normal(rows, width)
        logprobs = proximal + spread * normal(rows, width)

        def masked(values: Tensor) -> Tensor:
            return torch.where(mask, values, math.nan)

        return cls(
            mask=mask,
            groups=torch.randint(3, (rows,), generator=random),
            rewards=torch.randint(5, (rows,), generator=random).double() / 4,
            logprobs=masked(logprobs),
            proximal=masked(proximal),
            behaviour=masked(behaviour),
            advantages=masked(normal(rows, width)),
        )

    @property
    def log_ratio(self) -> Tensor:
        """Proximal - behaviour."""
        return self.proximal - self.behaviour

    def map(self, change: Callable[[Tensor], Tensor]) -> Ragged:
        """Return a copy with this change applied to all tensors."""
        return Ragged(**{field.name: change(getattr(self, field.name)) for field in attrs.fields(Ragged)})

    def wider(self, columns: int) -> Ragged:
        """Return a copy with more padding."""

        def padded(values: Tensor) -> Tensor:
            if values.dim() == 1:
                return values
            fill = False if values.dtype is torch.bool else math.nan
            return torch.cat([values, torch.full((len(values), columns), fill, dtype=values.dtype)], dim=1)

        return self.map(padded)

    @property
    def inputs(self) -> dict[str, Tensor]:
        """Return the inputs by their names in the registry."""
        named = {field.name: getattr(self, field.name) for field in attrs.fields(Ragged)}
        return named | {"lengths": self.mask.sum(dim=1), "log_ratio": self.log_ratio}


def totals_of(
    mask: Tensor, groups: Tensor, *, num_groups: int | None = None, reduce: Callable[[Tensor], Tensor] = lambda x: x
) -> Totals:
    """Return the totals of a mask whose answers belong to these groups, summed over ranks by `reduce`."""
    lengths = mask.sum(dim=1)
    size = num_groups if num_groups is not None else int(groups.max()) + 1 if len(groups) else 0
    counts = lengths.new_zeros(2 + size)
    counts[0], counts[1] = lengths.sum(), (lengths > 0).sum()
    counts[2:].index_add_(0, groups, lengths)
    tokens, sequences, *prompt_tokens = (int(count) for count in reduce(counts).tolist())
    return Totals(tokens, sequences, tuple(prompt_tokens))
