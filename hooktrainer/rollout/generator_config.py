"""What every generator of a run is built from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from hooktrainer.ports import Task, Tokenizer
from hooktrainer.rollout.score_options import ScoreOptions

if TYPE_CHECKING:
    from torch import nn


@attrs.frozen(kw_only=True, eq=False)
class GeneratorConfig:
    """The model, the task and the seed of a run; picklable, for worker processes."""

    policy: Callable[[], nn.Module]
    """Returns a new module of the learner's architecture at each call."""
    tokenizer: Tokenizer
    task: Task
    seed: int
    reward: ScoreOptions = attrs.field(factory=ScoreOptions)
    """The threads that score answers."""
    max_length: int
    """Largest number of tokens of a prompt and its answer."""
    save: Callable[[nn.Module, Any, Path], None] | None = None
    """Writes a module and its tokenizer into a folder, if the model can be saved."""
