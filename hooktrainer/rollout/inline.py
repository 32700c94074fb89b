"""Engine without threads: it generates while the loop waits for samples."""

from __future__ import annotations

import attrs

from hooktrainer.ports import RolloutEngine
from hooktrainer.rollout.engine import Engine, make_parts
from hooktrainer.rollout.generator_config import GeneratorConfig
from hooktrainer.rollout.options import SamplingOptions


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

    def build(self, config: GeneratorConfig) -> RolloutEngine:
        """Build the engine."""
        return InlineEngine(*make_parts(self, config))
