"""Protocols of the components that the loop and plugins use, and the plain types in their signatures."""

from __future__ import annotations

from hooktrainer.ports.checkpoint import BestMetric, CheckpointStore, Retention, StoredCheckpoint
from hooktrainer.ports.groups import (
    SCORE_TOLERANCE,
    Ages,
    Batch,
    Example,
    FailureReason,
    Floats,
    Group,
    Lost,
    Messages,
    Prompt,
    Replacement,
    Tokens,
    Trajectory,
)
from hooktrainer.ports.learner import KLControl, Learner, SupportsLogprobs, SupportsSkipping, SupportsTrainable
from hooktrainer.ports.models import Tokenizer
from hooktrainer.ports.replay import STRATEGIES, GroupSource, ReplayBuffer, Strategy, SupportsWorkerReports
from hooktrainer.ports.rollout import RolloutEngine
from hooktrainer.ports.run import Clock, Result, RewindableSink, RunState, Sink, Snapshot, Stateful, step_key_fault
from hooktrainer.ports.tasks import Answer, CharacterTask, HasFingerprint, HasSources, PromptSource, Score, Task
from hooktrainer.ports.weight_sync import Canary, WeightHolder, Weights, WeightSource, WeightTransport

__all__ = [
    "SCORE_TOLERANCE",
    "STRATEGIES",
    "Ages",
    "Answer",
    "Batch",
    "BestMetric",
    "Canary",
    "CharacterTask",
    "CheckpointStore",
    "Clock",
    "Example",
    "FailureReason",
    "Floats",
    "Group",
    "GroupSource",
    "HasFingerprint",
    "HasSources",
    "KLControl",
    "Learner",
    "Lost",
    "Messages",
    "Prompt",
    "PromptSource",
    "Replacement",
    "ReplayBuffer",
    "Result",
    "Retention",
    "RewindableSink",
    "RolloutEngine",
    "RunState",
    "Score",
    "Sink",
    "Snapshot",
    "Stateful",
    "StoredCheckpoint",
    "Strategy",
    "SupportsLogprobs",
    "SupportsSkipping",
    "SupportsTrainable",
    "SupportsWorkerReports",
    "Task",
    "Tokenizer",
    "Tokens",
    "Trajectory",
    "WeightHolder",
    "WeightSource",
    "WeightTransport",
    "Weights",
    "step_key_fault",
]
