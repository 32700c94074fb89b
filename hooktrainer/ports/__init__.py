"""What plugins and the loop work on, as protocols, and the plain types that they exchange."""

from __future__ import annotations

from hooktrainer.ports.groups import (
    Ages,
    Batch,
    FailureReason,
    Floats,
    Group,
    Lost,
    Prompt,
    Replacement,
    Tokens,
    Trajectory,
)
from hooktrainer.ports.learner import KLControl, Learner
from hooktrainer.ports.replay import GroupSource, ReplayBuffer, StalenessPolicy
from hooktrainer.ports.rollout import RolloutEngine
from hooktrainer.ports.run import Clock, Result, RunState, Sink, Snapshot
from hooktrainer.ports.tasks import PromptSource, Task
from hooktrainer.ports.weight_sync import Canary, WeightHolder, Weights, WeightTransport

__all__ = [
    "Ages",
    "Batch",
    "Canary",
    "Clock",
    "FailureReason",
    "Floats",
    "Group",
    "GroupSource",
    "KLControl",
    "Learner",
    "Lost",
    "Prompt",
    "PromptSource",
    "Replacement",
    "ReplayBuffer",
    "Result",
    "RolloutEngine",
    "RunState",
    "Sink",
    "Snapshot",
    "StalenessPolicy",
    "Task",
    "Tokens",
    "Trajectory",
    "WeightHolder",
    "WeightTransport",
    "Weights",
]
