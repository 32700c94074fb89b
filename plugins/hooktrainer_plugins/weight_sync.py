"""Publish the weights at the end of every step: one step, one sync."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final

import attrs
import numpy as np
from attrs.validators import ge, gt, instance_of, le

from hooktrainer import Plugin, Priority, on
from hooktrainer.errors import SyncError
from hooktrainer.events import FitStart, StepEnd, WeightsSynced
from hooktrainer.metrics import RuleTable, Sum
from hooktrainer.plugin import port
from hooktrainer.ports import (
    Canary,
    Clock,
    Learner,
    PromptSource,
    ReplayBuffer,
    RolloutEngine,
    SupportsLogprobs,
    SupportsTrainable,
    Tokens,
    WeightTransport,
)

_LONGEST_CANARY: Final = 4
"""Every token is a prefill and a step of decoding, which cost a large model more than the sync."""
_TOKENS: Final = np.array([0, 1, 1, 0], dtype=np.int64)
"""The canary of a task without held-out prompts. Every vocabulary has these tokens."""


@attrs.define(kw_only=True)
class WeightSync(Plugin):
    """Publish the learner's weights on the rollout engine at the end of a step; emit `WeightsSynced` on success.

    Checksums verify the weights that the engine holds. A canary verifies those that it uses: the engine must reproduce
    the learner's log-probabilities of the first held-out prompt, or of a few tokens if there is none. On a failure, the
    engine keeps its old weights and the run ends.
    """

    adds_metrics: ClassVar = ("weight_sync/", "timing_s/weight_sync")

    canary: bool = attrs.field(default=True, validator=instance_of(bool))
    """Whether to verify engines with the canary; requires `logprobs` of the learner and the engine."""
    canary_atol: float = attrs.field(default=1e-4, converter=float, validator=ge(0.0))
    """Largest allowed difference of a log-probability, in nats; below -30, for each 30 nats. Raise it for an engine
    of lower precision."""
    bucket_mb: float = attrs.field(default=256.0, converter=float, validator=[gt(0.0), le(2.0**20)])
    """Size of a bucket in MiB, at most 1 TiB, which bounds the memory beyond an engine's two sets. A larger tensor is
    sent alone."""

    learner: Learner = port()
    engine: RolloutEngine = port()
    transport: WeightTransport = port()
    buffer: ReplayBuffer = port()
    prompts: PromptSource = port()
    clock: Clock = port()

    _tokens: Tokens | None = attrs.field(default=None, init=False, repr=False, eq=False)  # of the canary

    @on(FitStart, priority=Priority.SYNC, makes=["weights.published"])
    def publish_first(self, _event: FitStart) -> None:
        """Publish the initial or restored weights, without emitting `WeightsSynced`."""
        self._tokens = None
        self._publish(self.buffer.version, first=True)

    @on(
        StepEnd,
        priority=Priority.SYNC,
        makes=["weights.published"],
        adds=["metrics.row"],
        emits=[WeightsSynced],
    )
    def sync(self, event: StepEnd) -> None:
        """Publish version k in step k; on a failure, restore the engine and raise `SyncError`."""
        started = self.clock.now()
        reported = self._publish(event.step)
        metrics = RuleTable().to_metrics(reported, samples=1)
        event.record.add({**metrics, "timing_s/weight_sync": Sum(self.clock.now() - started)})
        event.control.emit(WeightsSynced(step=event.step, version=event.step, last=event.last))

    def _publish(self, version: int, *, first: bool = False) -> Mapping[str, object]:
        return self.transport.publish(
            self.learner.weights(),
            version,
            (self.engine,),
            canary=self._make_canary() if self.canary else None,
            trained=self.learner.trainable() if isinstance(self.learner, SupportsTrainable) else None,
            bucket_bytes=max(1, int(self.bucket_mb * 2**20)),
            first=first,
        )

    def _make_canary(self) -> Canary:
        """Return the canary with the learner's current log-probabilities."""
        if not isinstance(self.learner, SupportsLogprobs):
            raise SyncError(
                f"{type(self.learner).__name__} has no logprobs(tokens), with which engines are compared after a sync. "
                "Implement it as documented in `hooktrainer.ports.SupportsLogprobs`, or turn the canary off: "
                "{use: weight_sync, canary: false}"
            )
        if self._tokens is None:
            prompts = self.prompts.heldout(1)
            text = prompts[0].tokens if prompts and len(prompts[0].tokens) else _TOKENS
            self._tokens = np.resize(text, min(max(2, len(text)), _LONGEST_CANARY))  # repeats a single token
        logprobs = np.asarray(self.learner.logprobs(self._tokens))
        return Canary(tokens=self._tokens, logprobs=logprobs, atol=self.canary_atol)
