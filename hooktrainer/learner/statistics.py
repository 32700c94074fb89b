"""Statistics of one optimizer update, merged over micro-batches and processes before they become metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, TypeAlias, cast

import torch
from torch import Tensor

from hooktrainer.algorithms.masking import selected
from hooktrainer.algorithms.stats import TokenMax, TokenMin, TokenStat, TokenSum, metric_name
from hooktrainer.learner.distributed import Communicator
from hooktrainer.metrics import to_host

Kind: TypeAlias = Literal[
    "policy_loss", "value_loss", "token_mean", "token_sum", "answer_mean", "max", "min", "norm", "term"
]
"""How the values of micro-batches are merged. Losses are shares of the loss of the whole mini-batch. Means are sums
over tokens or answers. A norm belongs to the whole mini-batch. A term is a sum over tokens that metrics are
computed from.
"""
Key: TypeAlias = tuple[Kind, str]
LOSSES: Final = ("policy_loss", "value_loss")
"""Kinds that must be finite for an update, as norms must."""


class UpdateStatistics:
    """Scalars on the device, by kind and name of the metric."""

    def __init__(self, values: Mapping[Key, Tensor] | None = None) -> None:
        self._values = dict(values or {})

    def add(self, kind: Kind, values: Mapping[str, Tensor]) -> None:
        """Add scalars of one kind."""
        self._values |= {(kind, name): value for name, value in values.items()}

    def add_token_stat(self, key: str, stat: TokenStat, mask: Tensor) -> None:
        """Reduce a stat of a policy loss over the tokens with a mask, and add it. Shapes (B, T), (B, T)."""
        name, values = metric_name(key), stat.values.detach()
        if values.is_floating_point():
            values = values.to(torch.promote_types(values.dtype, torch.float32))  # a sum of halves overflows
        if isinstance(stat, (TokenMax, TokenMin)):
            kind, worst = ("max", -torch.inf) if isinstance(stat, TokenMax) else ("min", torch.inf)
            kept = torch.where(mask, values, worst)
            extreme = kept.amax() if kind == "max" else kept.amin()
            self._values[cast("Kind", kind), name] = extreme
        else:
            kind = "token_sum" if isinstance(stat, TokenSum) else "token_mean"
            self._values[cast("Kind", kind), name] = selected(values, mask).sum()

    def merge(self, other: UpdateStatistics) -> None:
        """Merge the statistics of another micro-batch into these."""
        for key, value in other._values.items():
            before = self._values.get(key)
            self._values[key] = value if before is None else _merge(key[0], before, value)

    def keys(self) -> set[Key]:
        """Return kinds and names of all statistics."""
        return set(self._values)

    def reduced(self, communicator: Communicator) -> UpdateStatistics:
        """Return the statistics of all processes; every process must have the same keys."""
        if communicator.size == 1:
            return self
        extremes = {key: value for key, value in self._values.items() if key[0] in ("max", "min")}
        sums = {key: value for key, value in self._values.items() if key not in extremes}
        reduced = dict(communicator.sum_all(sums))
        for key, of_ranks in communicator.gather(extremes).items():
            reduced[key] = of_ranks.amax() if key[0] == "max" else of_ranks.amin()
        return UpdateStatistics(reduced)

    def to_host(self) -> dict[Key, float]:
        """Return all values as Python floats, with one transfer per device."""
        named = {f"{name} ({kind})": value for (kind, name), value in self._values.items()}
        return dict(zip(self._values, cast("dict[str, float]", to_host(named)).values(), strict=True))


def _merge(kind: Kind, first: Tensor, second: Tensor) -> Tensor:
    if kind == "max":
        return torch.maximum(first, second)
    return torch.minimum(first, second) if kind == "min" else first + second
