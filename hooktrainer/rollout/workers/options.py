"""Options of engines with a pool of workers."""

from __future__ import annotations

import attrs
from attrs.validators import and_, ge, instance_of

from hooktrainer.rollout.options import COUNT, SamplingOptions


@attrs.frozen(kw_only=True)
class WorkerOptions(SamplingOptions):
    """How prompts are answered in processes other than that of the learner."""

    workers: int = attrs.field(default=2, validator=COUNT)
    """Worker processes."""
    intra_op_threads: int = attrs.field(default=1, validator=COUNT)
    """Threads of one torch operation in each worker."""
    max_restarts: int = attrs.field(default=3, validator=and_(instance_of(int), ge(0)))
    """Restarts of each worker after it died, before the run fails."""
