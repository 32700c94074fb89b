"""Protocols of the components that the loop and plugins use, and the plain types in their signatures."""

from __future__ import annotations

from hooktrainer.ports.checkpoint import BestMetric, CheckpointStore, Retention, StoredCheckpoint
from hooktrainer.ports.environments import (
    Environment,
    HasEnvironment,
    Observation,
    ObservationTokenizer,
    SupportsClose,
    missing_methods,
)
from hooktrainer.ports.groups import (
    SCORE_TOLERANCE,
    Ages,
    Batch,
    Example,
    FailureReason,
    Floats,
    Group,
    Lost,
    Mask,
    Messages,
    Prompt,
    Replacement,
    Tokens,
    Trajectory,
)
from hooktrainer.ports.learner import KLControl, Learner, SupportsLogprobs, SupportsSkipping, SupportsTrainable
from hooktrainer.ports.models import ModelExport, SupportsFileCheck, Tokenizer
from hooktrainer.ports.replay import STRATEGIES, GroupSource, ReplayBuffer, Strategy, SupportsWorkerReports
from hooktrainer.ports.rollout import HasModule, RolloutEngine
from hooktrainer.ports.run import Clock, Result, RunState, Snapshot, Stateful
from hooktrainer.ports.samples import LatestSamples, SampleLog
from hooktrainer.ports.sinks import (
    IterationSink,
    RewindableSink,
    RunInfo,
    Sink,
    SupportsInstallCheck,
    is_critical,
    step_key_fault,
)
from hooktrainer.ports.tasks import Answer, CharacterTask, HasFingerprint, HasSources, PromptSource, Score, Task
from hooktrainer.ports.validation import validation_metrics
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
    "Environment",
    "Example",
    "FailureReason",
    "Floats",
    "Group",
    "GroupSource",
    "HasEnvironment",
    "HasFingerprint",
    "HasModule",
    "HasSources",
    "IterationSink",
    "KLControl",
    "LatestSamples",
    "Learner",
    "Lost",
    "Mask",
    "Messages",
    "ModelExport",
    "Observation",
    "ObservationTokenizer",
    "Prompt",
    "PromptSource",
    "Replacement",
    "ReplayBuffer",
    "Result",
    "Retention",
    "RewindableSink",
    "RolloutEngine",
    "RunInfo",
    "RunState",
    "SampleLog",
    "Score",
    "Sink",
    "Snapshot",
    "Stateful",
    "StoredCheckpoint",
    "Strategy",
    "SupportsClose",
    "SupportsFileCheck",
    "SupportsInstallCheck",
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
    "is_critical",
    "missing_methods",
    "step_key_fault",
    "validation_metrics",
]
