"""Engine without threads: it generates while the loop waits for samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import attrs

from hooktrainer.ports import RolloutEngine, Task
from hooktrainer.rollout.engine import Engine, make_parts
from hooktrainer.rollout.options import SamplingOptions
from hooktrainer.tasks.tokenizer import CharTokenizer

if TYPE_CHECKING:
    from torch import nn


class InlineEngine(Engine):
    """Generates on the loop's thread when the loop is about to wait. Runs are reproducible; nothing overlaps."""

    def pump(self) -> None:
        """Answer all pending groups."""
        if self._buffer is not None:
            self._worker_loop(self._buffer).run(block=False)

    def close(self) -> None:
        """Stop generating."""
        self._buffer = None


@attrs.frozen(kw_only=True)
class InlineOptions(SamplingOptions):
    """Sample on the loop's thread: synchronous and reproducible."""

    def build(
        self, *, policy: Callable[[], nn.Module], tokenizer: CharTokenizer, task: Task, seed: int
    ) -> RolloutEngine:
        """Build the engine; `policy` returns a new module of the learner's architecture at each call."""
        return InlineEngine(*make_parts(self, policy=policy, tokenizer=tokenizer, task=task, seed=seed))
