"""Publish the weights at the end of every step: one step, one sync."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs
import numpy as np
from attrs.validators import ge, gt, instance_of

from hooktrainer import Plugin, Priority, on
from hooktrainer.errors import SyncError
from hooktrainer.events import FitStart, StepEnd, WeightsSynced
from hooktrainer.metrics import Sum
from hooktrainer.metrics.reduction import RuleTable
from hooktrainer.plugin import port
from hooktrainer.ports import Canary, Clock, Learner, PromptSource, ReplayBuffer, RolloutEngine, WeightTransport

_LONGEST_CANARY: Final = 8


@attrs.define(kw_only=True)
class WeightSync(Plugin):
    """Bring the learner's weights to the rollout engine when a step ends, and say so once every copy is confirmed.

    What an engine holds is compared by checksums, and what it uses by a canary: the first held-out prompt, of which the
    engine has to give the log-probabilities that the learner gives. If anything fails, the engine goes on with what it
    had, and the run ends.
    """

    canary: bool = attrs.field(default=True, validator=instance_of(bool))
    """Whether engines have to score the canary as the learner does; needs `logprobs` of both."""
    canary_atol: float = attrs.field(default=1e-4, converter=float, validator=ge(0.0))
    """Largest difference of a log-probability, in nats. An engine of lower precision than the learner needs more."""
    bucket_mb: float = attrs.field(default=256.0, converter=float, validator=gt(0.0))
    """Weights on their way at once, in MiB: bounds memory beyond an engine's two sets. A larger tensor goes alone."""

    learner: Learner = port()
    engine: RolloutEngine = port()
    transport: WeightTransport = port()
    buffer: ReplayBuffer = port()
    prompts: PromptSource = port()
    clock: Clock = port()

    @on(FitStart, priority=Priority.SYNC, makes=["weights.published"])
    def publish_first(self, _event: FitStart) -> None:
        """Give the engine the weights to start from; this is no sync of a step."""
        self._publish(self.buffer.version)

    @on(
        StepEnd,
        priority=Priority.SYNC,
        makes=["weights.published"],
        adds=["metrics.row"],
        emits=[WeightsSynced],
    )
    def sync(self, event: StepEnd) -> None:
        """Publish version k in step k. Raises `SyncError` with every engine as it was."""
        started = self.clock.now()
        reported = self._publish(event.step)
        metrics = RuleTable().to_metrics(reported, samples=1)
        event.record.add({**metrics, "timing_s/weight_sync": Sum(self.clock.now() - started)})
        event.control.emit(WeightsSynced(step=event.step, version=event.step, last=event.last))

    def _publish(self, version: int) -> Mapping[str, object]:
        trainable = getattr(self.learner, "trainable", None)  # of learners that train other tensors than they publish
        return self.transport.publish(
            self.learner.weights(),
            version,
            (self.engine,),
            canary=self._scored() if self.canary else None,
            trained=None if trainable is None else trainable(),
            bucket_bytes=max(1, int(self.bucket_mb * 2**20)),
        )

    def _scored(self) -> Canary:
        """The canary, with what the learner says of it now."""
        if not callable(logprobs := getattr(self.learner, "logprobs", None)):
            raise SyncError(
                f"{type(self.learner).__name__} has no logprobs(tokens), which engines are compared with after a sync. "
                "Give it one, as `hooktrainer.ports.Learner` says, or do without: {use: weight_sync, canary: false}"
            )
        if not (prompts := self.prompts.heldout(1)) or not len(prompts[0].tokens):
            raise SyncError(
                "there is no held-out prompt to make a canary of. Give the task one, or do without: "
                "{use: weight_sync, canary: false}"
            )
        text = prompts[0].tokens
        tokens = np.resize(text, min(max(2, len(text)), _LONGEST_CANARY))  # a single token is repeated
        return Canary(tokens=tokens, logprobs=np.asarray(logprobs(tokens)), atol=self.canary_atol)
