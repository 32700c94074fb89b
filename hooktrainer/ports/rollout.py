"""The rollout engine: samples trajectories with its own copy of the published weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from hooktrainer.ports.groups import Prompt, Trajectory
from hooktrainer.ports.replay import ReplayBuffer
from hooktrainer.ports.weight_sync import WeightHolder


@runtime_checkable
class RolloutEngine(WeightHolder, Protocol):
    """Answers prompts with its own copy of the published weights."""

    def start(self, buffer: ReplayBuffer) -> None:
        """Begin to serve what the buffer dispatches."""
        ...

    def pump(self) -> None:
        """Called by the loop before it blocks in sampling; an engine without threads works here."""
        ...

    def answer(self, prompts: Sequence[Prompt]) -> Sequence[Trajectory]:
        """One greedy answer to each prompt, scored, on the published weights; on the caller's thread."""
        ...

    def take_metrics(self) -> Mapping[str, object]:
        """Metrics since the last call."""
        ...

    def close(self) -> None:
        """Stop and join every worker. May be called twice, and before `start`."""
        ...
