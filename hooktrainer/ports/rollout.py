"""Port of the rollout engine, which samples trajectories with its own copy of the published weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from hooktrainer.ports.groups import Prompt, Trajectory
from hooktrainer.ports.replay import ReplayBuffer
from hooktrainer.ports.weight_sync import WeightHolder

if TYPE_CHECKING:
    from torch import nn


@runtime_checkable
class RolloutEngine(WeightHolder, Protocol):
    """Answers prompts with its own copy of the published weights."""

    def start(self, buffer: ReplayBuffer) -> None:
        """Start to generate the groups that the buffer dispatches."""
        ...

    def pump(self) -> None:
        """Generate on the loop's thread, for engines without threads, and raise the error of a worker that failed.

        The loop calls it before it blocks in sampling.
        """
        ...

    def answer(self, prompts: Sequence[Prompt]) -> Sequence[Trajectory]:
        """Return one greedy, scored answer to each prompt, from the published weights; runs on the caller's thread."""
        ...

    def take_metrics(self) -> Mapping[str, object]:
        """Return the metrics since the last call."""
        ...

    def close(self) -> None:
        """Stop and join every worker. It may be called repeatedly, and before `start`."""
        ...


@runtime_checkable
class HasModule(Protocol):
    """An engine that holds the published weights in this process, so that they can be exported."""

    @property
    def module(self) -> nn.Module:
        """The module with the published weights, adapters merged. It must not change, and no sync may run meanwhile."""
        ...
