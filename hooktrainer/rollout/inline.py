"""Engine without threads: it generates while the loop waits for samples."""

from __future__ import annotations

import attrs

from hooktrainer._util.timeline import LOOP
from hooktrainer.ports import RolloutEngine
from hooktrainer.rollout.engine import GRACE_S, ReversibleEngine, make_parts
from hooktrainer.rollout.generator_config import GeneratorConfig
from hooktrainer.rollout.options import LocalOptions


class InlineEngine(ReversibleEngine):
    """Generates on the loop's thread when the loop is about to wait. Runs are reproducible; nothing overlaps."""

    def pump(self) -> None:
        """Answer all pending groups."""
        if self._buffer is not None:
            self._worker_loop(self._buffer, LOOP, self._raise).run(block=False)

    def close(self) -> None:
        """Stop generating and scoring."""
        self._buffer = None
        self._end_rewards(GRACE_S)

    def _raise(self, error: BaseException) -> None:
        raise error


@attrs.frozen(kw_only=True)
class InlineOptions(LocalOptions):
    """Sample on the loop's thread: synchronous and reproducible."""

    def build(self, config: GeneratorConfig) -> RolloutEngine:
        """Build the engine."""
        # One reward at a time, so that functions with a state or global random numbers repeat as well.
        return InlineEngine(*make_parts(self, attrs.evolve(config, reward=attrs.evolve(config.reward, workers=1))))
