"""Options that every built-in engine has."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import attrs
from attrs.validators import and_, ge, gt, in_, instance_of

from hooktrainer.ports import Task
from hooktrainer.tasks.tokenizer import CharTokenizer

if TYPE_CHECKING:
    from torch import nn

    from hooktrainer.rollout.generation import Generator
    from hooktrainer.weight_sync.double_buffer import DoubleBuffer

COUNT = and_(instance_of(int), ge(1))


@attrs.frozen(kw_only=True)
class SamplingOptions:
    """How prompts are answered."""

    n: int = attrs.field(default=8, validator=COUNT)
    """Answers to each prompt: the size of a group."""
    temperature: float = attrs.field(default=1.0, converter=float, validator=gt(0.0))
    """Sampling temperature; the learner takes log-probabilities at the same one."""
    max_response_length: int = attrs.field(default=16, validator=COUNT)
    """Tokens after which an answer is cut off, the end token included."""
    batching: Literal["continuous", "group"] = attrs.field(default="continuous", validator=in_(("continuous", "group")))
    """`continuous`: the slot of an answer that ends is refilled at once, so that a long one holds up no other. `group`:
    a worker decodes one group at a time, so that log-probabilities repeat to the last bit; tokens repeat in either."""
    slots: int = attrs.field(default=256, validator=COUNT)
    """Answers that a worker decodes at once in continuous batching."""
    on_sync: Literal["finish", "continue"] = attrs.field(default="finish", validator=in_(("finish", "continue")))
    """What an answer in work does when the weights change. `finish`: it ends on those that it began with. `continue`:
    it goes on with the new ones from its next token, a partial rollout; what it has read so far is read again."""
    sync_timeout_s: float = attrs.field(default=600.0, converter=float, validator=gt(0.0))
    """Seconds that a weight sync waits, for answers that began two versions ago and for each word of a worker. Then a
    worker process is killed and started anew, its groups given up; a thread cannot be, so that the run fails."""

    def parts(
        self, *, policy: Callable[[], nn.Module], tokenizer: CharTokenizer, task: Task, seed: int
    ) -> tuple[Generator, DoubleBuffer]:
        """What an engine of this process works with; `policy` makes a new module of the learner's architecture."""
        from hooktrainer.models.policy import full_state
        from hooktrainer.rollout.generation import Generator
        from hooktrainer.weight_sync.double_buffer import DoubleBuffer, ModulePair

        modules = ModulePair(policy, self.sync_timeout_s)
        generator = Generator(weights=modules, tokenizer=tokenizer, task=task, seed=seed, options=self)
        return generator, DoubleBuffer([full_state(module) for module in modules.modules], modules)
