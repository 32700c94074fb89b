"""Options that every built-in engine has."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import attrs
from attrs.validators import and_, ge, gt, instance_of, optional

from hooktrainer.ports import Task
from hooktrainer.tasks.tokenizer import CharTokenizer

if TYPE_CHECKING:
    from torch import nn

    from hooktrainer.rollout.generator import Generator

COUNT = and_(instance_of(int), ge(1))


@attrs.frozen(kw_only=True)
class Sampling:
    """How prompts are answered."""

    n: int = attrs.field(default=8, validator=COUNT)
    """Answers to each prompt: the size of a group."""
    temperature: float = attrs.field(default=1.0, converter=float, validator=gt(0.0))
    """Sampling temperature; the learner takes log-probabilities at the same one."""
    max_response_length: int = attrs.field(default=16, validator=COUNT)
    """Tokens after which an answer is cut off, the end token included."""
    max_batch_groups: int | None = attrs.field(default=None, validator=optional(COUNT))
    """Groups generated at once; all that are pending if left out. Groups draw the same random numbers in any batch,
    but only with 1 are log-probabilities the same to the last bit."""

    def generator(
        self, *, policy: Callable[[], nn.Module], tokenizer: CharTokenizer, task: Task, seed: int
    ) -> Generator:
        """What generates with these options; `policy` makes a new module of the learner's architecture."""
        from hooktrainer.rollout.generator import Generator

        return Generator(policy=policy, tokenizer=tokenizer, task=task, seed=seed, options=self)
