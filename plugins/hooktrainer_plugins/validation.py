"""Evaluate the published weights on fixed held-out prompts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

import attrs
from attrs.validators import ge, le, optional

from hooktrainer import Plugin, Priority, on
from hooktrainer.errors import ConfigError
from hooktrainer.events import FitStart, StepEnd
from hooktrainer.metrics import Sum
from hooktrainer.plugin import port
from hooktrainer.ports import Clock, LatestSamples, Prompt, PromptSource, RolloutEngine, validation_metrics

_LARGEST: Final = 256
"""Held-out prompts of a validation whose size is not set."""


@attrs.define(kw_only=True)
class Validation(Plugin):
    """Score greedy answers to held-out prompts, on the weights just published, every few steps and at the end."""

    adds_metrics: ClassVar = ("val/score/mean", "val/exact_match/mean", "val/response_length/mean", "timing_s/testing")

    every: int = attrs.field(default=5, validator=ge(1))
    """Steps between validations; the last step is always validated."""

    size: int | None = attrs.field(default=None, validator=optional([ge(1), le(1_000_000)]))
    """Number of held-out prompts, at most a million; the prompts are the same in every validation. Without it, they are
    all held-out prompts, at most 256."""

    engine: RolloutEngine = port()
    prompts: PromptSource = port()
    clock: Clock = port()
    samples: LatestSamples = port()

    _prompts: Sequence[Prompt] = attrs.field(default=(), init=False, repr=False)

    @on(FitStart, priority=Priority.PREPARE)
    def take_prompts(self, _event: FitStart) -> None:
        """Take the held-out prompts before any work, so that a lack of prompts is reported at once."""
        self._prompts = self.prompts.heldout(_LARGEST if self.size is None else self.size)
        if self.size is not None and len(self._prompts) < self.size:
            found = f"size is {self.size}, and the task has {len(self._prompts)} held-out prompts"
            raise ConfigError(f"{found}. Lower `size` or leave it out, or hold more prompts out")
        if not self._prompts:
            raise ConfigError("the task has no held-out prompts. Hold some out, or remove this plugin")

    @on(StepEnd, priority=Priority.EVALUATE, needs=["weights.published"], adds=["metrics.row"], every="every")
    def evaluate(self, event: StepEnd) -> None:
        """Add the mean score, also of each task of a mixture, and the share of exact answers."""
        started = self.clock.now()
        answers = self.engine.answer(self._prompts)
        self.samples.add_validated(self._prompts, answers)
        timing = {"timing_s/testing": Sum(self.clock.now() - started)}
        event.record.add({**validation_metrics(self._prompts, answers), **timing})
