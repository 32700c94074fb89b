"""An engine without threads: it works while the loop waits for samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import attrs

from hooktrainer.ports import RolloutEngine, Task
from hooktrainer.rollout.engine import Engine
from hooktrainer.rollout.options import SamplingOptions
from hooktrainer.tasks.tokenizer import CharTokenizer

if TYPE_CHECKING:
    from torch import nn


class InlineEngine(Engine):
    """Generates on the loop's thread, whenever the loop is about to wait: nothing overlaps, everything repeats."""

    def pump(self) -> None:
        """Answer all that is pending."""
        if self._buffer is not None:
            self._server(self._buffer).run(block=False)

    def close(self) -> None:
        """Serve no more."""
        self._buffer = None


@attrs.frozen(kw_only=True)
class InlineOptions(SamplingOptions):
    """Sample on the loop's thread: synchronous and reproducible."""

    def build(
        self, *, policy: Callable[[], nn.Module], tokenizer: CharTokenizer, task: Task, seed: int
    ) -> RolloutEngine:
        """The engine; `policy` makes a new module of the learner's architecture at each call."""
        return InlineEngine(*self.parts(policy=policy, tokenizer=tokenizer, task=task, seed=seed))
